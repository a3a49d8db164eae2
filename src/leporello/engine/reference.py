"""The engine `reference`: the whole graph, one step at a time, in plain PyTorch with its own autograd.

The meaning of every other engine. Any device, any operator; rows of the batch may interact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine.state_gradient import (
    ALL,
    ClipCount,
    Passing,
    broadcast_mask,
    requiring_gradient,
    with_clipped_gradient,
    with_weighted_gradient,
)
from leporello.loop.loop import Loop
from leporello.loop.port import Role


def run(
    loop: Loop,
    step: Callable[..., Any],
    values: Sequence[Tensor],
    length: int,
    batch: int,
    passing: Passing = ALL,
    counted: ClipCount | None = None,
) -> list[Tensor]:
    """Outputs in the order of the loop's.

    for each step:  outputs, states, terms = step(inputs of this step, invariants, states);  totals += terms

    passing   what of the gradient each step passes back to the step before; where losses go back in several groups,
              the sequence is run once for each, and an output is that of its group's run
    counted   counts where a gradient was clipped
    """
    with torch.autocast((values[0].device if values else torch.get_default_device()).type, enabled=False):
        if passing.count == 1:
            return _once(loop, step, values, length, batch, passing, counted)
        found = _once(loop, step, values, length, batch, passing.one(0), counted)
        for group in range(1, passing.count):
            other = _once(loop, step, values, length, batch, passing.one(group), counted)
            for index, port in enumerate(loop.outputs):
                if port.kind != "total" or port.rows:
                    mask = passing.masks(group, port.kind == "sequence")
                    found[index] = torch.where(broadcast_mask(mask, found[index]), other[index], found[index])
        return found


def _once(
    loop: Loop,
    step: Callable[..., Any],
    values: Sequence[Tensor],
    length: int,
    batch: int,
    passing: Passing,
    counted: ClipCount | None,
) -> list[Tensor]:
    timed = [port.kind in ("sequence", "draw") for port in loop.inputs]
    present = list(values)
    places = {port.name: index for index, port in enumerate(loop.inputs) if port.kind == "state"}
    limit = None if passing.limit is None else _Limit(loop, values, passing.limit, counted)
    if limit is not None:
        for place in places.values():
            present[place] = requiring_gradient(present[place])
    columns: list[list[Tensor]] = [[] for _ in loop.outputs]
    for time in reversed(range(length)) if loop.reverse else range(length):
        if passing.weights is not None:
            for place in places.values():
                present[place] = with_weighted_gradient(present[place], passing.weights[time])
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

    def __init__(self, loop: Loop, values: Sequence[Tensor], limit: float, counted: ClipCount | None) -> None:
        by_role = {port.role: value for port, value in zip(loop.inputs, values, strict=True)}
        self.past, self.elsewhere = by_role.get(Role.PAST), by_role.get(Role.ELSEWHERE)
        self.states = {port.name: index for index, port in enumerate(loop.outputs) if port.kind == "state"}
        self.finals = {
            index: port.of.name
            for index, port in enumerate(loop.outputs)
            if port.role is Role.FINAL_STATE and port.of is not None
        }
        self.limit, self.counted = limit, counted

    def put(self, made: list[Tensor], time: int) -> None:
        """Hook the outputs of a step."""
        past = None if self.past is None else self.past[time]
        leaving = with_clipped_gradient([made[index] for index in self.states.values()], self.limit, past, self.counted)
        for index, value in zip(self.states.values(), leaving, strict=True):
            made[index] = value
        for index, name in self.finals.items():
            if self.elsewhere is not None:
                value = made[self.states[name]]
                made[index] = value.masked_fill(broadcast_mask(self.elsewhere[time], value), 0)


def _gathered(kind: str, column: list[Tensor], reverse: bool) -> Tensor:
    if kind == "state":
        return column[-1]
    if kind == "total":
        return torch.stack(column).sum(0)
    return torch.stack(column[::-1] if reverse else column)
