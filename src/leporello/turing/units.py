"""Units of a network by name, and the linear maps between them: what a construction writes down before it is a matrix.

`Units` collects, for each unit, the linear combination of units and inputs that it saturates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from leporello.turing.stack_code import Number

Name = Hashable


@dataclass(frozen=True)
class Sum:
    """A linear combination of units, with a constant."""

    weights: Mapping[Name, Number] = field(default_factory=dict)
    constant: Number = 0

    def __add__(self, other: Sum | Number) -> Sum:
        if not isinstance(other, Sum):
            return Sum(self.weights, self.constant + other)
        weights = dict(self.weights)
        for name, weight in other.weights.items():
            weights[name] = weights.get(name, 0) + weight
        return Sum(weights, self.constant + other.constant)

    def __mul__(self, factor: Number) -> Sum:
        return Sum({name: factor * weight for name, weight in self.weights.items()}, factor * self.constant)

    def __sub__(self, other: Sum | Number) -> Sum:
        return self + other * -1

    def __truediv__(self, divisor: int) -> Sum:
        return self * Fraction(1, divisor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Number) -> Sum:
        return self * -1 + other


def unit(name: Name) -> Sum:
    """The value of one unit, or of one input."""
    return Sum({name: 1})


def total(sums: Iterable[Sum]) -> Sum:
    return sum(sums, Sum())


class Units:
    """Units h' = clamp(b + W h + U x, 0, 1) and outputs o = c + V h', by name, in the order in which they are added.

    inputs    the names of the inputs x
    """

    def __init__(self, inputs: Iterable[Name] = ()) -> None:
        self.inputs = tuple(inputs)
        self.sums: dict[Name, Sum] = {}
        self.outputs: dict[Name, Sum] = {}

    def saturate(self, name: Name, argument: Sum) -> Sum:
        """Add a unit that is `argument`, of the step before and of this step's input, clamped to [0, 1]."""
        assert name not in (*self.sums, *self.inputs), f"two units {name}"
        self.sums[name] = argument
        return unit(name)

    def matrices(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """W, b, V, c, and U where there are inputs; every weight is exact."""
        columns = {name: place for place, name in enumerate(self.sums)}
        inputs = {name: place for place, name in enumerate(self.inputs)}
        W, b = _filled(self.sums, columns, inputs, dtype)
        V, c = _filled(self.outputs, columns, inputs, dtype)
        if not self.inputs:
            return {"W": W, "b": b, "V": V, "c": c}
        U = _filled(self.sums, inputs, columns, dtype)[0]
        return {"U": U, "W": W, "b": b, "V": V, "c": c}


def _filled(
    sums: Mapping[Name, Sum], columns: Mapping[Name, int], elsewhere: Mapping[Name, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The matrix and the constants of some sums; `elsewhere` has the names that belong to another matrix."""
    matrix, constants = torch.zeros(len(sums), len(columns), dtype=dtype), torch.zeros(len(sums), dtype=dtype)
    for row, one in enumerate(sums.values()):
        constants[row] = _exact(one.constant, dtype)
        for name, weight in one.weights.items():
            if name in columns:
                matrix[row, columns[name]] = _exact(weight, dtype)
            else:
                assert name in elsewhere, f"no unit {name}"
    return matrix, constants


def _exact(number: Number, dtype: torch.dtype) -> float:
    value = float(number)
    assert Fraction(torch.tensor(value, dtype=dtype).item()) == number, f"{number} is rounded in {dtype}"
    return value
