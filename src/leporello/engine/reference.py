"""The engine `reference`: the whole graph, one step at a time, in plain PyTorch with its own autograd.

The meaning of every other engine. Any device, any operator, rows may meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine.crossing import Noted, clipped, heard, weighed
from leporello.engine.passing import ALL, Passing, spread
from leporello.loop.loop import Loop


def run(
    loop: Loop,
    step: Callable[..., Any],
    values: Sequence[Tensor],
    length: int,
    batch: int,
    passing: Passing = ALL,
    noted: Noted | None = None,
) -> list[Tensor]:
    """Outputs in the order of the loop's.

    for each step:  outputs, states, terms = step(inputs of this step, invariants, states);  totals += terms

    passing   what of the gradient each step passes back to the step before; where losses go back in several groups,
              the sequence is run once for each, and an output is that of its group's run
    noted     counts where a gradient was clipped
    """
    with torch.autocast(values[0].device.type if values else "cpu", enabled=False):
        if passing.count == 1:
            return _once(loop, step, values, length, batch, passing, noted)
        found = _once(loop, step, values, length, batch, passing.one(0), noted)
        for group in range(1, passing.count):
            other = _once(loop, step, values, length, batch, passing.one(group), noted)
            for index, port in enumerate(loop.outputs):
                if port.kind != "total" or port.rows:
                    mask = passing.masks(group, port.kind == "sequence")
                    found[index] = torch.where(spread(mask, found[index]), other[index], found[index])
        return found


def _once(
    loop: Loop,
    step: Callable[..., Any],
    values: Sequence[Tensor],
    length: int,
    batch: int,
    passing: Passing,
    noted: Noted | None,
) -> list[Tensor]:
    timed = [port.kind in ("sequence", "draw") for port in loop.inputs]
    present = list(values)
    places = {port.name: index for index, port in enumerate(loop.inputs) if port.kind == "state"}
    limit = None if passing.limit is None else _Limit(loop, values, passing.limit, noted)
    if limit is not None:
        for place in places.values():
            present[place] = heard(present[place])
    columns: list[list[Tensor]] = [[] for _ in loop.outputs]
    for time in reversed(range(length)) if loop.reverse else range(length):
        if passing.weights is not None:
            for place in places.values():
                present[place] = weighed(present[place], passing.weights[time])
        read = [value[time] if moves else value for value, moves in zip(present, timed, strict=True)]
        made = list(step(batch, *read))
        if limit is not None:
            limit.put(made, time)
        for index, (port, value) in enumerate(zip(loop.outputs, made, strict=True)):
            columns[index].append(value)
            if port.kind == "state":
                present[places[port.name]] = value
    return [_gathered(port.kind, column, loop.reverse) for port, column in zip(loop.outputs, columns, strict=True)]


class _Limit:
    """Clips the gradient of the state that leaves a step, and of the final state that a row takes along at its end."""

    def __init__(self, loop: Loop, values: Sequence[Tensor], limit: float, noted: Noted | None) -> None:
        given = {port.name: value for port, value in zip(loop.inputs, values, strict=True)}
        self.past, self.elsewhere = given.get("call.past"), given.get("call.elsewhere")
        self.states = {port.name: index for index, port in enumerate(loop.outputs) if port.kind == "state"}
        ends = enumerate(loop.outputs)
        self.finals = {index: port.name.removeprefix("call.final.") for index, port in ends if port.kind == "total"}
        self.limit, self.noted = limit, noted

    def put(self, made: list[Tensor], time: int) -> None:
        """Change what a step has made."""
        past = None if self.past is None else self.past[time]
        leaving = clipped([made[index] for index in self.states.values()], self.limit, past, self.noted)
        for index, value in zip(self.states.values(), leaving, strict=True):
            made[index] = value
        for index, name in self.finals.items():
            if self.elsewhere is not None:
                value = made[self.states[name]]
                made[index] = value.masked_fill(spread(self.elsewhere[time], value), 0)


def _gathered(kind: str, column: list[Tensor], reverse: bool) -> Tensor:
    if kind == "state":
        return column[-1]
    if kind == "total":
        return torch.stack(column).sum(0)
    return torch.stack(column[::-1] if reverse else column)
