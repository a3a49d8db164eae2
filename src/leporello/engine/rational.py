"""Tensors of rational numbers, and the operators of a Loop that stay among them: products, sums, saturations, views."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError

Number = int | Fraction
aten = torch.ops.aten


@dataclass(frozen=True)
class Exact:
    """A tensor of rational numbers: its shape, and its numbers in row-major order. Whole numbers may be ints."""

    shape: tuple[int, ...]
    numbers: list[Number]

    @staticmethod
    def of(tensor: Tensor, name: str = "a tensor") -> Exact:
        """The numbers of a tensor, exactly."""
        flat = tensor.detach().flatten()
        if tensor.is_complex() or not flat.isfinite().all():
            raise ArgumentError(
                f"'{name}' has numbers that are not rational.",
                came="complex numbers" if tensor.is_complex() else "infinity or NaN",
                expected="finite real numbers",
            )
        return Exact(tuple(tensor.shape), [exact_number(value) for value in flat.tolist()])

    @staticmethod
    def zeros(shape: tuple[int, ...]) -> Exact:
        return Exact(shape, [0] * math.prod(shape))

    @staticmethod
    def stack(parts: Sequence[Exact]) -> Exact:
        """Tensors of one shape along a new first axis."""
        return Exact((len(parts), *parts[0].shape), [number for part in parts for number in part.numbers])

    def part(self, index: int) -> Exact:
        """One of the parts along the first axis."""
        size = math.prod(self.shape[1:])
        return Exact(self.shape[1:], self.numbers[index * size : (index + 1) * size])

    def tensor(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The numbers rounded to floats."""
        return torch.tensor([float(number) for number in self.numbers], dtype=dtype).reshape(self.shape)

    @cached_property
    def columns_by_number(self) -> list[dict[Number, list[int]]]:
        """Of a matrix, for each row the numbers that are not 0, each with its columns."""
        rows, columns = self.shape
        found: list[dict[Number, list[int]]] = [{} for _ in range(rows)]
        for place, number in enumerate(self.numbers):
            if number:
                found[place // columns].setdefault(number, []).append(place % columns)
        return found


def exact_number(value: float) -> Number:
    """A finite number exactly; as an int where it is whole, since ints are faster."""
    return value if isinstance(value, int) else int(value) if value.is_integer() else Fraction(value)


# ---- operators


def _mm(one: Exact, other: Exact) -> Exact:
    """A matrix product that skips zeros: the state of a simulated machine has few other numbers."""
    (rows, inner), columns = one.shape, other.shape[1]
    numbers: list[Number] = []
    for row in range(rows):
        sums: list[Number] = [0] * columns
        for place in range(inner):
            factor = one.numbers[row * inner + place]
            if factor:
                for number, found in other.columns_by_number[place].items():
                    term = factor * number
                    for column in found:
                        sums[column] = sums[column] + term if sums[column] else term
        numbers += sums
    return Exact((rows, columns), numbers)


def _addmm(added: Exact, one: Exact, other: Exact, *, beta: float = 1, alpha: float = 1) -> Exact:
    return _add(_mul(added, beta), _mul(_mm(one, other), alpha))


def _pointwise(function: Callable[[Number, Number], Number], one: Any, other: Any) -> Exact:
    """A function of two tensors, or of a tensor and a number, with broadcasting."""
    a, b = (value if isinstance(value, Exact) else Exact((), [exact_number(value)]) for value in (one, other))
    shape = tuple(torch.broadcast_shapes(a.shape, b.shape))
    return Exact(shape, list(map(function, _broadcast(a, shape), _broadcast(b, shape))))


def _broadcast(value: Exact, shape: tuple[int, ...]) -> list[Number]:
    if math.prod(value.shape) == math.prod(shape):
        return value.numbers
    steps = [0] * (len(shape) - len(value.shape)) + [
        0 if size == 1 else math.prod(value.shape[axis + 1 :]) for axis, size in enumerate(value.shape)
    ]
    places = product(*map(range, shape))
    return [value.numbers[sum(i * step for i, step in zip(place, steps, strict=True))] for place in places]


def _add(one: Any, other: Any, *, alpha: float = 1) -> Exact:
    return _pointwise(operator.add, one, other if alpha == 1 else _mul(other, alpha))


def _sub(one: Any, other: Any, *, alpha: float = 1) -> Exact:
    return _pointwise(operator.sub, one, other if alpha == 1 else _mul(other, alpha))


def _mul(one: Any, other: Any) -> Exact:
    return _pointwise(operator.mul, one, other)


def _clamp(value: Exact, low: float | None = None, high: float | None = None) -> Exact:
    numbers = value.numbers
    if low is not None:
        least = exact_number(low)
        numbers = [number if number > least else least for number in numbers]
    if high is not None:
        most = exact_number(high)
        numbers = [number if number < most else most for number in numbers]
    return Exact(value.shape, numbers)


def _view(value: Exact, shape: Sequence[int]) -> Exact:
    known = math.prod(size for size in shape if size != -1)
    return Exact(tuple(len(value.numbers) // known if size == -1 else size for size in shape), value.numbers)


def _permute(value: Exact, axes: Sequence[int]) -> Exact:
    axes = [axis % len(value.shape) for axis in axes]
    shape = tuple(value.shape[axis] for axis in axes)
    steps = [math.prod(value.shape[axis + 1 :]) for axis in axes]
    places = product(*map(range, shape))
    return Exact(shape, [value.numbers[sum(i * s for i, s in zip(place, steps, strict=True))] for place in places])


def _cat(values: Sequence[Exact], axis: int = 0) -> Exact:
    axis %= len(values[0].shape)
    inner = [math.prod(value.shape[axis:]) for value in values]
    outer = range(math.prod(values[0].shape[:axis]))
    numbers = [n for i in outer for v, size in zip(values, inner, strict=True) for n in v.numbers[i * size :][:size]]
    shape = list(values[0].shape)
    shape[axis] = sum(value.shape[axis] for value in values)
    return Exact(tuple(shape), numbers)


def _unsqueeze(value: Exact, axis: int) -> Exact:
    axis %= len(value.shape) + 1
    return Exact((*value.shape[:axis], 1, *value.shape[axis:]), value.numbers)


OPERATORS: dict[Any, Callable[..., Exact]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: _mul,
    aten.neg.default: lambda value: _mul(value, -1),
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: lambda value, high: _clamp(value, None, high),
    aten.hardtanh.default: lambda value, low=-1, high=1: _clamp(value, low, high),
    aten.relu.default: lambda value: _clamp(value, 0),
    aten.permute.default: _permute,
    aten.t.default: lambda value: _permute(value, [1, 0]),
    aten.view.default: _view,
    aten.unsqueeze.default: _unsqueeze,
    aten.cat.default: _cat,
}
