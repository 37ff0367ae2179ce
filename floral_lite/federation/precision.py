"""How exactly products and convolutions are computed in training; parameters keep their own precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import InputError
from .settings import Precision


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """While it is entered, NVIDIA GPUs multiply in TF32 only if that is the precision, and repeatably.

    Torch's convolutions use TF32 unless told: without this CPU and GPU would not agree in "float32". And
    of a convolution's gradient cuDNN's quickest sums differ from one time to the next.

    Raises:
        InputError: torch's switches were set one by one, so that they cannot be put back afterwards.
    """
    if not torch.cuda.is_available():
        yield
        return
    cudnn = torch.backends.cudnn
    try:
        matmul, *before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic
    except RuntimeError as error:
        raise InputError(
            "an fp32_precision of torch.backends was set, beside which TF32 cannot be switched on and off: "
            "leave it as it is, and give precision='tf32' or 'float32' to the run"
        ) from error
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic = precision == "tf32", True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32, cudnn.deterministic = before


def forward_pass(precision: Precision, device: torch.device) -> torch.autocast:
    """A context for the forward passes of training, in which products are bfloat16 if asked."""
    # no cache: it would keep every step's rounded weights until the context is left
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)
