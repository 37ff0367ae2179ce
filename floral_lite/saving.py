"""Saving a Floral and loading it again, as one safetensors file with its settings."""

import json
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ._version import __version__
from .copies import overwrite
from .errors import InputError, require
from .files import write_whole
from .floral import Floral
from .router import Router


def save(model: Floral, path: str | Path) -> None:
    """Write base, adaptors, router and the client's statistics to a file, whole or not at all.

    The router and the statistics are the client's own: keep the file with the client.

    Args:
        model: what to save.
        path: a file name, by custom ending in .safetensors; a file that is there is replaced.

    Raises:
        InputError: the model is no Floral, its router is of a class of your own, a tensor is sparse or of a
            type that safetensors does not have, or the path is a folder's. Nothing is written then.
        OSError: the folder is not there, say.
    """
    check_floral(model)
    require(
        type(model.router) is Router,
        f"the model's router is of type {type(model.router).__name__}, and a file keeps a Router's options "
        "only: save its state_dict(), or what merge() makes of it",
    )
    tensors = _tensors(model)
    for name, tensor in tensors.items():
        require(
            _can_be_kept(tensor),
            f"{name} is {tensor.layout} of {tensor.dtype}; a file keeps dense tensors of the types that "
            "safetensors has: convert it, such as with .to_dense() or .to(torch.complex64)",
        )
    settings = {
        "num_clusters": model.num_clusters,
        **asdict(model.options),
        "router": asdict(model.router),
    }
    # copies, since a file takes neither tensors that share memory nor ones that are not contiguous
    tensors = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    told = json.dumps(settings, default=float)  # NumPy's floats too
    content = safetensors.torch.save(tensors, {"floral_lite": __version__, "settings": told})
    write_whole(Path(path), content)


def load(path: str | Path, model: nn.Module) -> Floral:
    """The Floral in a file, around a base model of the same architecture.

    Args:
        path: what `save` wrote.
        model: the base; it is wrapped, and its parameters are replaced by those in the file.

    Raises:
        InputError: the file is not one of ours, or its names, shapes or types are not the model's.
            The model is then left as it was.
        OSError: there is no such file, say.
    """
    require(not Path(path).is_dir(), f"{path} is a folder; name the file that floral_lite.save wrote in it")
    require(not isinstance(model, Floral), "model is a Floral already; give the base network: model.base")
    try:
        with safe_open(path, framework="pt") as file:
            names, metadata = list(file.keys()), file.metadata() or {}
            found = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    require("floral_lite" in metadata, f"{path} was not written by floral_lite.save; it has no settings")
    try:
        settings = json.loads(metadata["settings"])
        # before memory is taken for so many
        same = settings["num_clusters"] == len(found["router_logits"])
        require(same, "it has another number of adaptors than router logits")
        wrapped = Floral(model, **{**settings, "router": Router(**settings["router"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{path} is of another network, damaged, or of another version of floral_lite ({error!r})"
        ) from None

    logits = found["router_logits"]
    if logits.is_floating_point():  # half, if the whole Floral was moved to it
        wrapped.router_logits.data = wrapped.router_logits.data.to(logits.dtype)
    expected = _tensors(wrapped)
    for name in sorted(expected.keys() | found.keys()):
        there, wanted = (_kind(tensors.get(name)) for tensors in (found, expected))
        require(
            there == wanted,
            f"{name} is {there} in {path} and {wanted} in the model: load it into the architecture and "
            "precision that it was saved from, with the same parameters frozen and the same entries in "
            "adaptors.KINDS",
        )
    for name, tensor in expected.items():
        overwrite(tensor, found[name])
    return wrapped


def check_floral(model: object) -> None:
    """Raise InputError for a plain network, such as `merge` or `personal_model` gives."""
    require(
        isinstance(model, Floral),
        f"model is of type {type(model).__name__}; it must be a Floral, such as personal_floral gives: of a "
        "plain network save the state_dict()",
    )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once even where two modules share it."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _can_be_kept(tensor: Tensor) -> bool:
    """Whether a file has a form for a tensor; of its types only safetensors itself has the list."""
    try:
        safetensors.torch.save({"one": torch.zeros(1, dtype=tensor.dtype)})
    except KeyError:
        return False
    return tensor.layout == torch.strided


def _kind(tensor: Tensor | None) -> str:
    """Shape and type in words."""
    return "missing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
