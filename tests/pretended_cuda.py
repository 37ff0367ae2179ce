"""A pytest plugin for machines without a GPU: an NVIDIA GPU that is pretended.

    python -m pytest -p tests.pretended_cuda tests/test_cuda.py

A tensor "on CUDA" is here a wrapper around one on the CPU. As on a GPU, an operation refuses tensors of both
devices, CUDA's random numbers come from a generator of their own, and while a graph is recorded nothing may
wait for the GPU. A recorded graph is a list of operations, and its replay does them again. So all of the
engine's code for CUDA runs, and its numbers can be compared. What stays unseen is what only a GPU has: its
own sums, its streams, its memory and its speed. Where there is a real one, it does nothing.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

CUDA, INSIDE = torch.device("cuda:0"), torch.device("meta")  # what a wrapper says it is on, and what it is
COPIES = ("aten::copy_", "aten::_to_copy")
WAITS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_linalg_check_errors",
)
INDEXING = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
true_device = torch._C.TensorBase.device.__get__


class GPU:
    """What the pretended GPU has of its own."""

    generator = torch.Generator()
    recorded: list[Any] | None = None  # the operations since a recording began
    told = False  # whether to warn where the host waits


class Pretended(Tensor):
    """A tensor "on CUDA", which holds one on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "Pretended":
        made: Pretended = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=INSIDE,
        )
        made.held = held
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = self.detach().clone().requires_grad_(self.requires_grad)
            copied.__dict__ |= {name: kept for name, kept in vars(self).items() if name != "held"}
            memo[id(self)] = copied
        return memo[id(self)]

    def __repr__(self, *args: object, **options: object) -> str:
        return f"{self.held} on a pretended GPU"

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        wait("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return compute(operation, args, options or {})


class Dispatch(TorchDispatchMode):
    """Catches what makes a tensor from none, such as torch.zeros."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return compute(operation, args, options or {})


def on_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("cuda", "meta")


def wait(what: str) -> None:
    if GPU.recorded is not None:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
    if GPU.told:
        warnings.warn(f"called a synchronizing CUDA operation: {what}", stacklevel=4)


def compute(operation: Any, args: Any, options: dict[str, Any]) -> Any:
    """Do on the CPU what a GPU would, after its checks."""
    name = operation.name().split(".")[0]
    leaves, form = tree_flatten((args, options))
    tensors = tensors_of(leaves)
    wrapped = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
    device = options.get("device")
    there = on_gpu(device) if device is not None else bool(wrapped)
    if name == "aten::copy_":
        there = isinstance(args[0], Pretended)
    if name in COPIES:
        check_copy(name, args, options, there)
    elif wrapped and device is None:
        check_devices(operation, name, args, tensors)
    if wrapped and name in WAITS:
        wait(name)
    plain_args, plain_options = tree_unflatten(
        [leaf.held if isinstance(leaf, Pretended) else leaf for leaf in leaves], form
    )
    if not there:
        return operation(*plain_args, **plain_options)
    if device is not None:
        plain_options["device"] = torch.device("cpu")
    out = perform(operation, plain_args, plain_options)
    if GPU.recorded is not None:
        # as they are now: an operation in place may change a tensor's shape later
        kept = tree_map_only(Tensor, torch.detach, (plain_args, plain_options, out))
        GPU.recorded.append((operation, *kept))
    out = tree_map_only(Tensor, Pretended, out)
    return return_and_correct_aliasing(operation, args, options, out) if wrapped else out


def check_devices(operation: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    """A number from the CPU may meet tensors of the GPU, and an index of the CPU's; nothing else may."""
    others = [tensor for tensor in tensors if not isinstance(tensor, Pretended)]
    if name in INDEXING:
        others = [tensor for tensor in others if not any(tensor is index for index in args[1])]
        for index in args[1]:
            if index is not None and (not isinstance(index, Pretended) or index.dtype == torch.bool):
                wait(f"{name} of a mask, or by the CPU's numbers")
    if any(tensor.dim() for tensor in others):
        where = [(tuple(one.shape), "cuda" if isinstance(one, Pretended) else "cpu") for one in tensors]
        raise RuntimeError(f"Expected all tensors to be on the same device: {operation} of {where}")


def check_copy(name: str, args: Any, options: dict[str, Any], there: bool) -> None:
    """Copies to the CPU wait, and those from it unless its memory is pinned."""
    source = args[1] if name == "aten::copy_" else args[0]
    goes_on = options.get("non_blocking", args[2] if len(args) > 2 else False)
    overlaps = there and goes_on and getattr(source, "pinned", False)
    if isinstance(source, Pretended) != there and (source.dim() or not there) and not overlaps:
        wait(name)


def perform(operation: Any, args: Any, options: Any) -> Any:
    """With the GPU's own random numbers, if any are drawn."""
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return operation(*args, **options)
    if options.get("generator") is not None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(GPU.generator.get_state())
        out = operation(*args, **options)
        GPU.generator.set_state(torch.default_generator.get_state())
    return out


class Graph:
    """A CUDA graph."""

    operations: list[Any]

    @torch.no_grad()
    def replay(self) -> None:
        for operation, args, options, out in self.operations:
            memory = {own.untyped_storage().data_ptr() for own in tensors_of((args, options))}
            results = tensors_of(out)
            views = all(result.untyped_storage().data_ptr() in memory for result in results)
            if torch.Tag.inplace_view in operation.tags or (views and not operation._schema.is_mutable):
                continue
            again = perform(operation, args, options)
            if not operation._schema.is_mutable:
                for result, new in zip(results, tensors_of(again), strict=True):
                    result.copy_(new)


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def graph(made: Graph) -> Iterator[None]:
    GPU.recorded = made.operations = []
    try:
        yield
    finally:
        GPU.recorded = None


class Generator:
    """CUDA's default generator."""

    def clone_state(self) -> torch.Generator:
        return GPU.generator.clone_state()

    def graphsafe_set_state(self, other: torch.Generator) -> None:
        GPU.generator = other


class Stream:
    """CUDA's only stream."""

    device = CUDA

    def wait_stream(self, other: "Stream") -> None:
        pass


def to(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
    """Tensor.to, which knows no wrappers: torch built for CPUs refuses the name of the GPU."""
    given = [*args, *options.values()]
    if tensor.is_cuda and len(given) - ("non_blocking" in options) == 1 and given[0] == CUDA:
        return tensor

    def named(value: Any) -> Any:
        return INSIDE if isinstance(value, str | torch.device) and on_gpu(value) else value

    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    return true_to(tensor, *map(named, args), **{name: named(value) for name, value in options.items()})


def pinned(tensor: Tensor) -> Tensor:
    assert not tensor.is_cuda
    copied = tensor.clone()
    copied.pinned = True  # type: ignore[attr-defined]
    return copied


def made_there(make: Any) -> Any:
    """torch.tensor and its like, which copy to the device themselves."""

    def made(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        here: Tensor = make(data, **options)
        return here if device is None else to(here, device)

    return made


def item(tensor: Tensor, index: Any) -> Tensor:
    """tensor[index], where the index may be a list."""
    return true_item(tensor, torch.tensor(index) if isinstance(index, list) and tensor.is_cuda else index)


true_to, true_item = Tensor.to, Tensor.__getitem__


def pytest_configure() -> None:
    """From now on torch has a GPU, if it had none."""
    if torch.cuda.is_available():
        return
    stream = Stream()
    replaced: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda device: "pretended",
            "get_device_properties": lambda device: SimpleNamespace(total_memory=2**34),
            "device": lambda device: nullcontext(),
            "manual_seed": lambda seed: GPU.generator.manual_seed(seed),
            "get_rng_state": lambda device="cuda": GPU.generator.get_state(),
            "set_rng_state": lambda state, device="cuda": GPU.generator.set_state(state),
            "default_generators": (Generator(),),
            "current_stream": lambda: stream,
            "Stream": Stream,
            "stream": lambda stream: nullcontext(),
            "set_stream": lambda stream: None,
            "CUDAGraph": Graph,
            "graph": graph,
            "empty_cache": lambda: None,
            "is_bf16_supported": lambda *args, **options: True,
            "set_sync_debug_mode": lambda mode: setattr(GPU, "told", mode == "warn"),
        },
        Tensor: {
            "device": property(lambda tensor: CUDA if true_device(tensor) == INSIDE else true_device(tensor)),
            "is_cuda": property(lambda tensor: true_device(tensor) == INSIDE),
            "is_meta": property(lambda tensor: False),
            "to": to,
            "cuda": lambda tensor, device=None: to(tensor, CUDA),
            "pin_memory": pinned,
            "__getitem__": item,
        },
        torch: {"tensor": made_there(torch.tensor), "as_tensor": made_there(torch.as_tensor)},
    }
    for owner, names in replaced.items():
        for name, value in names.items():
            setattr(owner, name, value)
    torch._C._set_only_lift_cpu_tensors(True)
    Dispatch().__enter__()
