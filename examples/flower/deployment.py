"""Flower on this machine alone: a SuperLink and SuperNodes on loopback, with TLS and their own keys."""

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"


class Deployment:
    """A deployment's processes, which all end on leaving the `with`.

    Args:
        folder: for keys, logs, the SuperLink's database and the clients' own files.
        num_clients: SuperNodes, numbered from 0.
        patience: seconds to wait for anything, such as the end of a round.
    """

    def __init__(self, folder: Path, num_clients: int, patience: float = 600) -> None:
        """Make keys and certificates."""
        self.folder, self.num_clients, self.patience = folder, num_clients, patience
        self.port, *self.node_ports = free_ports(1 + num_clients)
        folder.mkdir(parents=True, exist_ok=True)
        make_certificates(folder)
        for client in range(num_clients):
            make_node_key(self.key(client))
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            # Flower starts its helpers by their names
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / "flwr").mkdir(exist_ok=True)
        (folder / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "local"\n\n[superlink.local]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = "{folder / "ca.pem"}"\n'
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Deployment":
        """Start everything; only the SuperLink is waited for."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or everything would go on without us
        try:
            self.start_superlink()
            for client in range(self.num_clients):
                self.flwr("supernode", "register", f"{self.key(client)}.pub", "local")
            for client in range(self.num_clients):
                self.start_supernode(client)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        for name in reversed(list(self.processes)):
            self.kill(name, signal.SIGTERM)

    def key(self, client: int) -> Path:
        """A SuperNode's private key; the public one has .pub behind its name."""
        return self.folder / f"node-{client}"

    def own(self, client: int) -> Path:
        """The folder in which a client keeps its own files."""
        return self.folder / f"client-{client}"

    def start_superlink(self) -> None:
        """Start the server's side. Its database is a file, so after a restart it still knows the nodes."""
        self._start(
            "superlink",
            *("flower-superlink", "--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", self.folder / "ca.pem"),
            *("--ssl-certfile", self.folder / "server.pem", "--ssl-keyfile", self.folder / "server.key"),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", self.folder / "superlink.db"),
        )
        self.wait("the SuperLink listens", self._listens)

    def start_supernode(self, client: int) -> None:
        """Start a client's side."""
        name, own = f"supernode-{client}", self.own(client)
        self._start(
            name,
            *("flower-supernode", "--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", self.folder / "ca.pem"),
            *("--auth-supernode-private-key", self.key(client)),
            *("--node-config", f'partition-id={client} folder="{own}" data="{own}/data.safetensors"'),
            *("--host", HOST, "--port", str(self.node_ports[client])),
        )

    def flwr(self, *arguments: object) -> str:
        """Run Flower's command line, and return its output."""
        done = subprocess.run(
            ["flwr", *map(str, arguments)], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"flwr {arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a process and its children a signal, and wait until they are gone."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self, what: str, condition: Callable[[], bool]) -> float:
        """Wait until a condition holds, and return the seconds that it took.

        Raises:
            RuntimeError: it took longer than `patience`, or the SuperLink has ended by itself.
        """
        begin = time.monotonic()
        while not condition():
            ended = self.processes["superlink"].poll() is not None
            if ended or time.monotonic() > begin + self.patience:
                why = "the SuperLink has ended before" if ended else f"not within {self.patience:.0f} s"
                said = (self.folder / "superlink.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{why}: {what}. The SuperLink says:\n{said}")
            time.sleep(0.2)
        return time.monotonic() - begin

    def _start(self, name: str, *command: object) -> None:
        """A process in a group of its own, with a log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _listens(self) -> bool:
        """Whether the SuperLink listens."""
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind((HOST, 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def make_node_key(path: Path) -> None:
    """A SuperNode's key pair, on a NIST curve, in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """A private key that nobody else on this machine may read."""
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def make_certificates(folder: Path) -> None:
    """A certificate authority of our own, valid for a day, and its certificate for the server on loopback."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def certificate(name: str, key: Any, issuer: str, signer: Any, *extensions: Any) -> x509.Certificate:
        subject, by = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)]) for who in (name, issuer)
        )
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256())

    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    # it signs certificates and lists of revoked ones, and nothing else
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    own_key = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = certificate(
        *("floral_lite demo", authority, "floral_lite demo", authority),
        *((x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (own_key, False)),
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    by_root = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_key)
    leaf = certificate(
        *("localhost", server, "floral_lite demo", authority),
        *((x509.SubjectAlternativeName(names), False), (by_root, False)),
        (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
    )
    write_key(folder / "server.key", server, serialization.PrivateFormat.PKCS8)
    (folder / "ca.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
