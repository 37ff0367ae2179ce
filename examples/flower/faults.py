"""What happens when parts of a federation over Flower are killed: each fault, and what came of it."""

import argparse
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from demo import deal, run
from deployment import Deployment
from safetensors import safe_open

from floral_lite.federation import load_checkpoint

ROUNDS = 6
ALONE = 3  # where only the SuperLink is killed


def main() -> None:
    """One run, in which first a SuperNode and then the SuperLink is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for keys, logs and files; a new one")
    parser.add_argument("--patience", type=float, default=600, help="seconds for each step")
    parser.add_argument("--superlink-only", action="store_true", help="leave the SuperNodes alone")
    given = parser.parse_args()
    folder, server = given.folder.absolute(), given.folder.absolute() / "server"
    rounds = ALONE if given.superlink_only else ROUNDS
    config = {"method": "floral", "rounds": rounds, "evaluate-every": rounds, "num-clients": 3}

    def wait(what: str, condition: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > given.patience:
                raise RuntimeError(f"not within {given.patience} s: {what}")
            time.sleep(0.2)
        print(f"{time.monotonic() - begin:6.0f} s until {what}", flush=True)

    deal(folder, 3)
    with Deployment(folder, 3) as deployment:
        run(deployment, config, server, wait=False)
        wait("a round is done", lambda: done(server) >= 1)
        if not given.superlink_only:
            wait("client 1 trains in a round", lambda: own(deployment, 1)[0] > done(server))
            deployment.kill("supernode-1", signal.SIGKILL)
            number, theta = own(deployment, 1)
            print(f"SuperNode 1 is killed in round {number}")
            wait("the run has gone on without it", lambda: done(server) >= number)
            deployment.start_supernode(1)
            wait("it trains again", lambda: own(deployment, 1)[0] > number)
            same = torch.equal(own(deployment, 1, "before")[1], theta)
            print(f"it goes on with the router that it had: {same}", flush=True)

        wait("a round is done", lambda: done(server) >= own(deployment, 1)[0])
        wait("client 0 trains in a round", lambda: own(deployment, 0)[0] > done(server))
        deployment.kill("superlink", signal.SIGKILL)
        print(f"SuperLink and server app are killed in round {done(server) + 1}", flush=True)
        kept = done(server)
        deployment.start_superlink()
        run(deployment, config, server, wait=False)
        wait("the run, started again, is at its end", (server / "history.json").exists)
        (federation,) = load_checkpoint(server) or []
        numbers = [entry.round for entry in federation.history.rounds]
        print(f"after the restart it went on from round {kept + 1}; the rounds are {numbers}")
        print(f"test accuracy at the end: {federation.history.rounds[-1].test_accuracy:.4f}")


def done(server: Path) -> int:
    """Rounds in the newest checkpoint."""
    return max((int(path.name.removeprefix("round-")) for path in server.glob("round-*")), default=0)


def own(deployment: Deployment, client: int, kept: str = "after") -> tuple[int, torch.Tensor]:
    """The last round that a client trained in, and its router after or before it; round 0 if none."""
    for path in deployment.own(client).rglob("client-*.safetensors"):
        with safe_open(path, framework="pt") as file:
            return int(file.metadata()["round"]), file.get_tensor(f"{kept}/router_logits")
    return 0, torch.zeros(0)


if __name__ == "__main__":
    main()
