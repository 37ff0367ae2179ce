"""Convolution LoRA: the kernel is read as a matrix, in one of several ways.

A kernel W (c_out, c_in, k_1, k_2) becomes a matrix by dealing its axes to rows (U) and
columns (V). Applying L = U V^T is then a chain of two convolutions: V first, to r
channels, then U, each along its own sides of the kernel.

| kind        | U              | V              | parameters                     | equivalent rank |
|-------------|----------------|----------------|--------------------------------|-----------------|
| channel_out | c_out, k_1 k_2 | c_in           | (c_out k_1 k_2 + c_in) r       | r k_1 k_2       |
| channel_in  | c_out          | c_in, k_1 k_2  | (c_out + c_in k_1 k_2) r       | r               |
| balanced    | c_out, k_2     | c_in, k_1      | (c_out k_2 + c_in k_1) r       | r k_2           |
| filter      | c_out, k_2     | c_in, k_1      | (c_out k_2 + c_in k_1) c_out r | c_out           |

Two more names: "channel" is the cheaper of the two channel kinds, and "reshaped" is the same
matrix, trained as one linear LoRA instead of a chain of convolutions. The equivalent rank is
that of L as a matrix (c_out, c_in k_1 k_2), for factors in general position, and never more
than that matrix's sides.

With groups, c_in is the weight's own second axis, the channels of one group: all groups
share V. A transposed convolution keeps the input channels first; U still has the outputs,
with groups those of one group: all groups share U.
"""

from collections.abc import Iterable
from itertools import combinations
from math import prod

from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from ..errors import require
from .low_rank import LowRankAdaptor, fit_rank
from .options import Options


def fit_conv(layer: nn.Module, name: str, options: Options) -> LowRankAdaptor:
    """The adaptor of a convolution's kernel, in 1, 2 or 3 dimensions, transposed or not.

    `options.convolution` is one of

    - "balanced": each factor gets a part of the kernel's sides, the part with which a rank
      costs least; in one dimension, where there is one side, the cheaper channel kind.
    - "channel_out", "channel_in": all sides with U, or with V; "channel": the cheaper one.
    - "filter": "balanced" with c_out times the rank, so that each output can have r products
      of its own. (The paper prints a sum over r channels; its shapes and its count of
      parameters have c_out r, as here.)
    - "reshaped": as "channel", but trained as one matrix: preconditioned like a linear layer.

    Raises:
        InputError: "filter" meets a kernel that is not two-dimensional, or is 1 x 1.

    Source: appendix 'Adaptors', 'Convolution layer'.
    """
    shape = tuple(layer.get_parameter(name).shape)
    output, inputs = (1, 0) if isinstance(layer, _ConvTransposeNd) else (0, 1)
    sides = tuple(range(2, len(shape)))

    def matrix(sides_of_u: Iterable[int]) -> tuple[int, int]:
        """The kernel as a matrix has c_out k_U rows and c_in k_V columns; a rank costs their sum."""
        kernel_of_u = prod(shape[side] for side in sides_of_u)
        return shape[output] * kernel_of_u, shape[inputs] * (prod(shape[2:]) // kernel_of_u)

    channel: list[tuple[int, ...]] = [sides, ()]
    # every way to deal the sides with at least one for each factor; where they cost the same, U gets the last
    shared = [part for size in range(1, len(sides)) for part in combinations(sides[::-1], size)]
    choices: dict[str, list[tuple[int, ...]]] = {
        "channel_out": [sides],
        "channel_in": [()],
        "channel": channel,
        "reshaped": channel,
        "balanced": shared or channel,
        "filter": [sides[-1:]],
    }
    sides_of_u = tuple(sorted(min(choices[options.convolution], key=lambda of_u: sum(matrix(of_u)))))
    inner = 1
    if options.convolution == "filter":
        require(
            len(sides) == 2 and max(shape[2:]) > 1,
            f"convolution is 'filter', but the kernel's sides are {shape[2:]}; it splits two-dimensional "
            "filters larger than 1 x 1: use convolution='balanced'",
        )
        inner = shape[output]
    rank = inner * fit_rank(options, *matrix(sides_of_u), times=inner)
    columns = (inputs, *(side for side in sides if side not in sides_of_u))
    return LowRankAdaptor(options.convolution, shape, (output, *sides_of_u), columns, rank, options.init)
