"""Parameters of a cell: checks of the sizes and options it is made with, and the values that its parameters start from.

A check raises an ArgumentError that names the argument.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from leporello.errors import ArgumentError


def check_sizes(**sizes: object) -> None:
    """Raise unless each is a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(
                f"'{name}' is no size.",
                came=repr(size),
                expected="a positive integer",
                tries=f"{name}=1 or more, written as a plain int",
            )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless the value is one of the choices."""
    allowed = list(choices)
    if value not in allowed:
        raise ArgumentError(
            f"'{name}' is not known.",
            came=repr(value),
            expected=", ".join(map(repr, allowed)),
            tries=f"{name}={allowed[0]!r}",
        )


def check_probabilities(**probabilities: float) -> None:
    """Raise unless each is a number in [0, 1]."""
    for name, value in probabilities.items():
        if not is_number(value) or not 0 <= value <= 1:
            raise ArgumentError(
                f"'{name}' is no probability.",
                came=repr(value),
                expected="a number from 0 to 1",
                tries=f"{name}=0.0 for none of it",
            )


def is_number(value: object) -> bool:
    """Whether a value is an int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- initial values


def uniform(*shape: int, bound: float) -> nn.Parameter:
    """Uniform between -bound and bound."""
    return between(-bound, bound, *shape)


def between(low: float, high: float, *shape: int) -> nn.Parameter:
    """Uniform between low and high."""
    return nn.Parameter(nn.init.uniform_(torch.empty(shape), low, high))


def orthogonal(rows: int, columns: int) -> nn.Parameter:
    """A random orthogonal matrix: it preserves norms, so that a state neither decays nor grows at first.

    If it is not square, its columns are orthonormal; where it has more columns than rows, its rows are.
    """
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # no QR in half precision
    matrix = nn.init.orthogonal_(torch.empty(rows, columns, dtype=dtype))
    return nn.Parameter(matrix.to(torch.get_default_dtype()))


def constant(*shape: int, value: float) -> nn.Parameter:
    """One value everywhere."""
    return nn.Parameter(torch.full(shape, float(value)))
