"""Fresh parameters: the distributions that cells start from."""

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
    """A random orthogonal matrix: it preserves norms, so that a state neither decays nor grows at first."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # no QR in half precision
    matrix = nn.init.orthogonal_(torch.empty(rows, columns, dtype=dtype))
    return nn.Parameter(matrix.to(torch.get_default_dtype()))


def constant(*shape: int, value: float) -> nn.Parameter:
    """One value everywhere."""
    return nn.Parameter(torch.full(shape, float(value)))
