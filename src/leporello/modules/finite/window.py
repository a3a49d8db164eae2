"""`Window`: the call that failed, as a Loop with its values, to be run in blocks of steps or one step by itself.

Runs as the engine `reference` does. Knows Loops and time; knows nothing of what is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine import reference
from leporello.engine.passing import ALL, Passing, spread
from leporello.loop.fake_tensors import row_axes
from leporello.loop.graph import SPELLING, function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port

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
