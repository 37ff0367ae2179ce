"""What stays with a client: its router, and everything else that is private, in a file of its own."""

import re
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._version import __version__
from ..errors import InputError, require
from ..files import write_whole

Private = dict[str, Tensor]


class OwnFile:
    """A client's private tensors before and after the last round that it trained in.

    Both, since a server that was interrupted asks for its round once more. The client then begins it where it
    began it before. (A round with too few good replies is over: who trained in it keeps what it has learned.)

    Args:
        folder: of the client's own; made when there is something to keep.
        federation: what the server calls the run, 16 hexadecimal digits. Each run has a file of its own.
        client: the client's number.

    Raises:
        InputError: the name is not of that form: it might lead out of the folder.
    """

    def __init__(self, folder: Path | str, federation: str, client: int) -> None:
        """Find the file's name."""
        require(
            re.fullmatch("[0-9a-f]{16}", federation) is not None,
            f"the server calls the federation {federation!r}; it must be 16 hexadecimal digits",
        )
        self.path = Path(folder) / federation / f"client-{client}.safetensors"

    def load(self, number: int, first: Private) -> Private:
        """What the client begins a round with.

        Args:
            number: 1, 2, ...: the round.
            first: what it begins its first round with; names, shapes and types have to be these.

        Returns:
            What it had after the rounds before this one.

        Raises:
            InputError: the file is damaged, of another model, or of a later round. It stays as it is.
        """
        if not self.path.exists():
            return first
        try:
            with safe_open(self.path, framework="pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                done = int((file.metadata() or {})["round"])
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(
                f"{self.path} is damaged ({error!r}): move it away, and this client starts from scratch"
            ) from None
        require(
            number >= done,
            f"{self.path} is of round {done}, and the server asks for round {number}: put back the client's "
            "file of that time, or move this one away, and it starts from scratch",
        )
        kept = "after/" if number > done else "before/"
        private = {name.removeprefix(kept): tensor for name, tensor in found.items() if name.startswith(kept)}
        kinds = [
            {name: (tensor.shape, tensor.dtype) for name, tensor in some.items()} for some in (private, first)
        ]
        require(
            kinds[0] == kinds[1],
            f"{self.path} is of another method or model: move it away, or use another folder",
        )
        return {name: private[name] for name in first}

    def save(self, number: int, before: Private, after: Private) -> None:
        """Write what the client had before and after a round, whole or not at all.

        Args:
            number: the round.
            before: what it began with.
            after: what it has now. A client without anything private has no file.

        Raises:
            InputError: as for `load`. (Flower trains a late round beside the next, which may end before it.)
        """
        if not after:
            return
        self.load(number, before)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        both = {"before/": before, "after/": after}
        tensors = {
            prefix + name: tensor.detach().cpu().clone().contiguous()
            for prefix, private in both.items()
            for name, tensor in private.items()
        }
        write_whole(self.path, save(tensors, {"floral_lite": __version__, "round": str(number)}))
