"""How exactly products and convolutions are computed in training; parameters keep their own precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .settings import Precision


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """While it is entered, NVIDIA GPUs multiply in TF32 only if that is the precision, and repeatably.

    Torch's convolutions use TF32 unless told: without this CPU and GPU would not agree in "float32". And
    of a convolution's gradient cuDNN's quickest sums differ from one time to the next.
    """
    if not torch.cuda.is_available():
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.deterministic = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def forward_pass(precision: Precision, device: torch.device) -> torch.autocast:
    """A context for the forward passes of training, in which products are bfloat16 if asked."""
    # no cache: it would keep every step's rounded weights until the context is left
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)
