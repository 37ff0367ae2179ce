"""How exactly products and convolutions are computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .settings import Precision


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """While it is entered, products and convolutions have that precision; parameters keep their own.

    On a GPU "float32" also switches off the TF32 that torch's convolutions use unless told, so that
    CPU and GPU agree.

    Args:
        precision: "float32", "tf32" or "bfloat16".
        device: where is computed.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        # no cache: it would keep every step's rounded weights until the round ends
        with torch.autocast(
            device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False
        ):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
