"""Every client's own data."""

from typing import NamedTuple

from torch import Tensor


class Shard(NamedTuple):
    """One client's samples: inputs (N, ...) and targets (N,) or (N, outputs)."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """N, the number of samples (not the number of fields)."""
        return len(self.inputs)
