"""The engine `exact`: the whole graph of a Loop, one step at a time, on rational numbers without rounding.

Parameters and inputs are finite floats, hence rationals with a power of two below; they are converted exactly. The
operators are those that stay rational: products, sums, saturations and views. Others are refused by name. There are no
gradients. Numbers grow as they must: a state may need more digits at every step.

`steps` and `run` take and give numbers; `run_tensors` takes tensors, and rounds once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import ArgumentError, EngineRefusal
from leporello.loop.loop import Loop

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

    def tensor(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The numbers rounded to floats."""
        return torch.tensor([float(number) for number in self.numbers], dtype=dtype).reshape(self.shape)

    @cached_property
    def nonzero_by_row(self) -> list[list[tuple[int, Number]]]:
        """Of a matrix, the columns and numbers of each row that are not 0."""
        rows, columns = self.shape
        parts = (self.numbers[row * columns : (row + 1) * columns] for row in range(rows))
        return [[(column, number) for column, number in enumerate(part) if number] for part in parts]


def exact_number(value: float) -> Number:
    """A finite number exactly; as an int where it is whole, since ints are faster."""
    return value if isinstance(value, int) else int(value) if value.is_integer() else Fraction(value)


def steps(
    loop: Loop, state: Mapping[str, Exact], inputs: Iterable[Mapping[str, Exact]]
) -> Iterator[tuple[dict[str, Exact], dict[str, Exact]]]:
    """Run the Loop step by step: yields the outputs and the states after each step, by name.

    state    the first state, by leaf: [rows, ...]
    inputs   for each step what the sequences of the Loop are, by name; empty mappings for a Loop without inputs
    """
    refuse(loop)
    values = {port.name: _invariant(loop, port.name) for port in loop.inputs if port.kind == "invariant"}
    rows = next((leaf.shape[0] for leaf in state.values()), 1)
    fixed = _fixed(loop, values, rows)
    for given in inputs:
        results = _one_step(loop, fixed, {**given, **state}, rows)
        named = list(zip(loop.outputs, results, strict=True))
        state = {port.name: value for port, value in named if port.kind == "state"}
        yield {port.name: value for port, value in named if port.kind == "sequence"}, dict(state)


def run(
    loop: Loop, state: Mapping[str, Exact], inputs: Sequence[Mapping[str, Exact]] | None = None, *, length: int = 0
) -> tuple[list[dict[str, Exact]], dict[str, Exact]]:
    """The outputs of all steps and the last state, by name; `length` is the number of steps without inputs."""
    outputs: list[dict[str, Exact]] = []
    last = dict(state)
    for output, last in steps(loop, state, [{}] * length if inputs is None else inputs):
        outputs.append(output)
    return outputs, last


def refuse(loop: Loop) -> None:
    """Raise for a Loop that this engine does not cover, naming what it is."""
    for port in (*loop.inputs, *loop.outputs):
        if port.kind in ("draw", "total") or port.dtype.is_complex:
            raise EngineRefusal(
                f"the engine 'exact' does not run '{port.name}'.",
                cell=loop.name,
                came="complex numbers" if port.dtype.is_complex else f"a {port.kind}",
                expected="sequences, parameters and states of real numbers",
                tries='engine="auto"',
            )
    for node in loop.nodes:
        if node.target not in OPERATORS:
            raise EngineRefusal(
                f"the engine 'exact' does not cover the operator {node.target}.",
                cell=loop.name,
                line=node.meta.get("place"),
                expected=", ".join(sorted({str(operator).split(".")[1] for operator in OPERATORS})),
                tries='engine="auto"',
            )


def _invariant(loop: Loop, name: str) -> Exact:
    value = loop.invariant(name)
    if value is None:
        raise ArgumentError(f"the invariant '{name}' has no value.", tries="fold the cell, and pass that Loop")
    return Exact.of(value, name)


def _fixed(loop: Loop, invariants: Mapping[str, Exact], rows: int) -> dict[fx.Node, Any]:
    """The values that are the same at every step: the number of rows, invariants, and what depends on them alone."""
    first = next(iter(loop.graph.nodes))
    fixed: dict[fx.Node, Any] = {first: rows}
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.name in invariants and port.kind == "invariant":
            fixed[node] = invariants[port.name]
    for node in loop.nodes:
        if all(read in fixed for read in node.all_input_nodes):
            fixed[node] = _apply(node, fixed)
    return fixed


def _one_step(loop: Loop, fixed: Mapping[fx.Node, Any], given: Mapping[str, Exact], rows: int) -> list[Exact]:
    values = dict(fixed)
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind != "invariant":
            if port.name not in given or given[port.name].shape != port.shape_of(0, rows)[-1 - len(port.shape) :]:
                raise ArgumentError(
                    f"the engine 'exact' needs a value for the {port.kind} '{port.name}'.",
                    came=f"shape {list(given[port.name].shape)}" if port.name in given else "nothing",
                    expected=f"shape {[rows, *port.shape]}",
                )
            values[node] = given[port.name]
    for node in loop.nodes:
        if node not in values:
            values[node] = _apply(node, values)
    return [values[node] for node in loop.results]


def _apply(node: fx.Node, values: Mapping[fx.Node, Any]) -> Exact:
    arguments, options = fx.node.map_arg((node.args, node.kwargs), lambda read: values[read])
    result: Exact = OPERATORS[node.target](*arguments, **options)
    return result


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
                for column, number in other.nonzero_by_row[place]:
                    sums[column] += factor * number
        numbers += sums
    return Exact((rows, columns), numbers)


def _addmm(added: Exact, one: Exact, other: Exact, *, beta: float = 1, alpha: float = 1) -> Exact:
    return _add(_mul(added, beta), _mul(_mm(one, other), alpha))


def _pointwise(function: Callable[[Number, Number], Number], one: Any, other: Any) -> Exact:
    """A function of two tensors, or of a tensor and a number, with broadcasting."""
    a, b = (value if isinstance(value, Exact) else Exact((), [exact_number(value)]) for value in (one, other))
    shape = tuple(torch.broadcast_shapes(a.shape, b.shape))
    return Exact(shape, [function(x, y) for x, y in zip(_broadcast(a, shape), _broadcast(b, shape), strict=True)])


def _broadcast(value: Exact, shape: tuple[int, ...]) -> list[Number]:
    if value.shape == shape:
        return value.numbers
    steps = [0] * (len(shape) - len(value.shape)) + [
        0 if size == 1 else math.prod(value.shape[axis + 1 :]) for axis, size in enumerate(value.shape)
    ]
    places = product(*map(range, shape))
    return [value.numbers[sum(i * step for i, step in zip(place, steps, strict=True))] for place in places]


def _add(one: Any, other: Any, *, alpha: float = 1) -> Exact:
    return _pointwise(lambda x, y: x + y, one, other if alpha == 1 else _mul(other, alpha))


def _sub(one: Any, other: Any, *, alpha: float = 1) -> Exact:
    return _pointwise(lambda x, y: x - y, one, other if alpha == 1 else _mul(other, alpha))


def _mul(one: Any, other: Any) -> Exact:
    return _pointwise(lambda x, y: x * y, one, other)


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
