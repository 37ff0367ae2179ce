"""How exactly products and convolutions are computed in training; parameters keep their own precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .settings import Precision


@contextmanager
def tf32(precision: Precision) -> Iterator[None]:
    """While it is entered, NVIDIA GPUs multiply in TF32 if that is the precision, and not otherwise.

    Torch's convolutions use TF32 unless told: without this CPU and GPU would not agree in "float32".
    """
    if not torch.cuda.is_available():
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def forward_pass(precision: Precision, device: torch.device) -> torch.autocast:
    """A context for the forward passes of training, in which products are bfloat16 if asked."""
    # no cache: it would keep every step's rounded weights until the context is left
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)
