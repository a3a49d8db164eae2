"""`Window`: the call that failed, as a Loop with its values, to be run in blocks of steps or one step by itself.

Runs as the engine `reference` does. Knows Loops and time; knows nothing of what is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine import reference
from leporello.engine.passing import ALL, Passing, spread
from leporello.loop.fake_tensors import row_axes
from leporello.loop.graph import SPELLING, arguments, function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.nets.non_finite.origin import Origin, kind_of, made_by, tensors_in

BLOCK = 64  # steps that are run before anybody looks at what they gave
States = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Window:
    """A call.

    function   one step of the loop
    values     in the order of the loop's inputs; sequences and draws are (length, batch, ...)
    """

    loop: Loop
    function: Callable[..., Any]
    values: tuple[Tensor, ...]
    length: int
    batch: int

    @staticmethod
    def of_call(loop: Loop, values: Sequence[Tensor], length: int, batch: int) -> Window:
        return Window(loop, function_of(loop.graph), tuple(values), length, batch)

    @cached_property
    def past(self) -> Tensor | None:
        """Where rows have ended, (length, batch): what happens there reaches nobody."""
        return next((value for port, value in self.pairs if port.name == "call.past"), None)

    @property
    def pairs(self) -> list[tuple[Port, Tensor]]:
        return list(zip(self.loop.inputs, self.values, strict=True))

    @property
    def states(self) -> States:
        """Before the first step."""
        return {port.name: value for port, value in self.pairs if port.kind == "state"}

    def blocks(self, reverse: bool = False) -> Iterator[tuple[int, int]]:
        starts = range(0, self.length, BLOCK)
        for first in reversed(starts) if reverse else starts:
            yield first, min(first + BLOCK, self.length)

    def of(self, first: int, last: int, states: Mapping[str, Tensor]) -> Window:
        """A stretch of its steps, from a state."""
        values = []
        for port, value in self.pairs:
            timed = port.kind in ("sequence", "draw")
            values.append(value[first:last] if timed else states[port.name] if port.kind == "state" else value)
        return replace(self, values=tuple(values), length=last - first)

    def run(self, passing: Passing = ALL) -> dict[tuple[str, str], Tensor]:
        """The loop's outputs by kind and name."""
        made = reference.run(self.loop, self.function, self.values, self.length, self.batch, passing)
        return {(port.kind, port.name): value for port, value in zip(self.loop.outputs, made, strict=True)}

    def nodes(self, time: int = 0) -> dict[fx.Node, Any]:
        """Every value of one step, by its node."""
        graph = self.loop.graph
        read = [value[time] if port.kind in ("sequence", "draw") else value for port, value in self.pairs]
        values: dict[fx.Node, Any] = dict(zip([next(iter(graph.nodes))], [self.batch], strict=True))
        values |= dict(zip(self.loop.placeholders, read, strict=True))
        with torch.autocast(self.values[0].device.type if self.values else "cpu", enabled=False):
            for node in self.loop.nodes:
                values[node] = evaluated(node, values)
        return values

    def row_axis(self, node: fx.Node, value: Tensor) -> int | None:
        """The axis of a value that is the rows; the first that could be, for a loop traced for one batch only."""
        if self.loop.decides_by_rows:
            return 0 if value.dim() and value.shape[0] == self.batch else None
        stand_in = node.meta.get("val")
        axes = row_axes(stand_in) if isinstance(stand_in, Tensor) else []
        fits = len(axes) == 1 and value.dim() > axes[0] and value.shape[axes[0]] == self.batch
        return axes[0] if fits else None

    def alive(self, value: Tensor) -> Tensor:
        """A sequence (length, batch, ...) with zeros where rows have ended."""
        return value if self.past is None else value.masked_fill(spread(self.past, value), 0)


def evaluated(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """What an operator makes of the values it reads."""
    args, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    operator: Any = SPELLING.get(node.target, node.target)
    return operator(*args, **options)


def states_in(made: Mapping[tuple[str, str], Tensor]) -> States:
    return {name: value for (kind, name), value in made.items() if kind == "state"}


@dataclass(eq=False)
class Forward:
    """What a forward sweep gave.

    origin   of the first value that is not finite, None where there is none
    starts   the state before the first step of each block, by that step
    made     the loop's outputs by kind and name: sequences whole, totals summed, states as they end
    """

    origin: Origin | None = None
    starts: dict[int, States] = field(default_factory=dict)
    made: dict[tuple[str, str], Tensor] = field(default_factory=dict)


@torch.no_grad()
def forward(window: Window) -> Forward:
    """Run all steps in blocks, and look into the first block that needs it."""
    found, states = Forward(), window.states
    meant = {name for name, value in states.items() if kind_of(value) is not None}
    pieces: list[dict[tuple[str, str], Tensor]] = []
    for first, last in window.blocks():
        found.starts[first] = states
        block = window.of(first, last, states)
        made = block.run()
        pieces.append(made)
        looked_into = found.origin is None and any(
            kind_of(block.alive(value) if kind == "sequence" else value) for (kind, _), value in made.items()
        )
        if looked_into:
            found.origin = _step_by_step(window, first, last, states, meant)
        states = states_in(made)
    found.made = {(kind, name): _whole(kind, [made[kind, name] for made in pieces]) for kind, name in pieces[0]}
    return found


def _whole(kind: str, column: list[Tensor]) -> Tensor:
    if kind == "state":
        return column[-1]
    return torch.cat(column) if kind == "sequence" else torch.stack(column).sum(0)


def _step_by_step(window: Window, first: int, last: int, states: States, meant: set[str]) -> Origin | None:
    for time in range(first, last):
        alone = window.of(time, time + 1, states)
        made = alone.run()
        if any(kind_of(value) for value in made.values()):
            step = _Step(alone, time, meant)
            origin = step.origin()
            if origin is not None:
                return origin
            meant |= {name for name, value in states_in(made).items() if kind_of(value) is not None}
        states = states_in(made)
    return None


class _Step:
    """One step with all its values."""

    def __init__(self, alone: Window, time: int, meant: set[str]) -> None:
        self.window, self.time = alone, time
        self.values = alone.nodes()
        self.rank = {node: index for index, node in enumerate(alone.loop.graph.nodes)}
        ports = zip(alone.loop.inputs, alone.loop.placeholders, strict=True)
        self.given = {node for port, node in ports if port.kind != "state" or port.name in meant}

    def origin(self) -> Origin | None:
        """Of the first row that has one; rows that meet are looked at together."""
        if self.window.loop.meets is not None:
            return self._of_row(None)
        return next((found for row in self._rows() if (found := self._of_row(row)) is not None), None)

    def _rows(self) -> list[int]:
        """Rows that have not ended and whose results are not finite."""
        wrong = torch.zeros(self.window.batch, dtype=torch.bool)
        for node in self.window.loop.results:
            value = self.values[node]
            if kind_of(value) is not None and value.dim() and value.shape[0] == self.window.batch:
                wrong |= value.isfinite().logical_not().reshape(self.window.batch, -1).any(1).cpu()
        if self.window.past is not None:
            wrong &= ~self.window.past[0].cpu()
        return [int(row) for row in wrong.nonzero()]

    def _of_row(self, row: int | None) -> Origin | None:
        """Go back from a result through what was not finite before it, to an operator that read finite values only."""
        kinds = {node: kind for node, value in self.values.items() if (kind := self._kind(node, value, row))}
        sources: dict[fx.Node, list[fx.Node]] = {}  # of each value that is not meant, those like it that it read
        meant: set[fx.Node] = set()
        for node, kind in kinds.items():
            read = [source for source in node.all_input_nodes if source in kinds]
            left = [source for source in read if source not in meant]
            written = node in self.given if node.op == "placeholder" else bool(read) or _writes_infinity(node)
            if kind != "nan" and written and not left:
                meant.add(node)
            else:
                sources[node] = left
        wrong = [node for node in self.window.loop.results if node in sources]
        if not wrong:
            return None
        node = min(wrong, key=self.rank.__getitem__)
        while sources[node]:
            alike = [source for source in sources[node] if kinds[source] == "nan"] if kinds[node] == "nan" else []
            node = min(alike or sources[node], key=self.rank.__getitem__)
        if node.op == "placeholder":
            return Origin("state", kinds[node], name=node.meta.get("label"), step=self.time, row=row)
        return made_by(node, "forward", kinds[node], self.time, self._first_row(node) if row is None else row)

    def _kind(self, node: fx.Node, value: Any, row: int | None) -> Any:
        kinds = [kind_of(self._part(node, tensor, row)) for tensor in tensors_in(value)]
        return "nan" if "nan" in kinds else next((kind for kind in kinds if kind), None)

    def _part(self, node: fx.Node, value: Tensor, row: int | None) -> Tensor:
        axis = self.window.row_axis(node, value) if row is not None else None
        return value if axis is None or row is None else value.select(axis, row)

    def _first_row(self, node: fx.Node) -> int | None:
        value = self.values[node]
        axis = self.window.row_axis(node, value) if isinstance(value, Tensor) else None
        if axis is None:
            return None
        return int(value.isfinite().logical_not().movedim(axis, 0).reshape(self.window.batch, -1).any(1).nonzero()[0])


def _writes_infinity(node: fx.Node) -> bool:
    """Whether infinity stands among an operator's own arguments, as in masked_fill(mask, -inf)."""
    numbers = [argument for argument in (*arguments(node), *node.kwargs.values()) if isinstance(argument, float)]
    return any(math.isinf(number) for number in numbers)
