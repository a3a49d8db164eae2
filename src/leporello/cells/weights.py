"""Fresh parameters: the distributions that cells start from.

Knows shapes and distributions; knows nothing of any one cell.
"""

from __future__ import annotations

import torch
from torch import nn


def uniform(*shape: int, bound: float) -> nn.Parameter:
    """Uniform between -bound and bound."""
    return between(-bound, bound, *shape)


def between(low: float, high: float, *shape: int) -> nn.Parameter:
    """Uniform between low and high."""
    return nn.Parameter(nn.init.uniform_(torch.empty(shape), low, high))


def orthogonal(rows: int, columns: int) -> nn.Parameter:
    """A random matrix that keeps lengths, so that what a state holds neither fades nor grows at first."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # no QR in half precision
    matrix = nn.init.orthogonal_(torch.empty(rows, columns, dtype=dtype))
    return nn.Parameter(matrix.to(torch.get_default_dtype()))


def constant(*shape: int, value: float) -> nn.Parameter:
    """The same number everywhere."""
    return nn.Parameter(torch.full(shape, float(value)))
