"""The engine `reference`: the whole graph, one step at a time, in plain PyTorch with its own autograd.

It defines the result of every other engine. Any device, any operator; interaction across the batch is allowed.
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
    """Run the Loop over a sequence: outputs in the order of the Loop's.

    for each step:  outputs, states, terms = step(inputs of this step, invariants, states);  totals += terms

    step      the Loop's graph as a function of batch and inputs
    passing   what of the gradient each step passes back to the step before; where losses go back in several groups,
              the sequence is run once for each, and each output is taken from its group's run (a total that is
              summed over rows from the first)
    counted   counts, in the backward pass, where a gradient was clipped; None to count nothing
    """
    with torch.autocast((values[0].device if values else torch.get_default_device()).type, enabled=False):
        if passing.count == 1:
            return _once(loop, step, values, length, batch, passing, counted)
        outputs = _once(loop, step, values, length, batch, passing.one(0), counted)
        for group in range(1, passing.count):
            of_group = _once(loop, step, values, length, batch, passing.one(group), counted)
            for index, port in enumerate(loop.outputs):
                if port.kind != "total" or port.rows:
                    mask = passing.masks(group, port.kind == "sequence")
                    outputs[index] = torch.where(broadcast_mask(mask, outputs[index]), of_group[index], outputs[index])
        return outputs


def _once(
    loop: Loop,
    step: Callable[..., Any],
    values: Sequence[Tensor],
    length: int,
    batch: int,
    passing: Passing,
    counted: ClipCount | None,
) -> list[Tensor]:
    """The sequence run once, with one group of losses."""
    timed = [port.kind in ("sequence", "draw") for port in loop.inputs]
    current = list(values)  # with the states before the next step
    places = {port.name: index for index, port in enumerate(loop.inputs) if port.kind == "state"}
    clipper = None if passing.limit is None else _Clipper(loop, values, passing.limit, counted)
    if clipper is not None:
        for place in places.values():
            current[place] = requiring_gradient(current[place])
    columns: list[list[Tensor]] = [[] for _ in loop.outputs]
    for time in reversed(range(length)) if loop.reverse else range(length):
        if passing.weights is not None:
            for place in places.values():
                current[place] = with_weighted_gradient(current[place], passing.weights[time])
        read = [value[time] if has_time else value for value, has_time in zip(current, timed, strict=True)]
        outputs = list(step(batch, *read))
        if clipper is not None:
            clipper.hook(outputs, time)
        for index, (port, value) in enumerate(zip(loop.outputs, outputs, strict=True)):
            columns[index].append(value)
            if port.kind == "state":
                current[places[port.name]] = value
    return [_gathered(port.kind, column, loop.reverse) for port, column in zip(loop.outputs, columns, strict=True)]


class _Clipper:
    """Hooks that clip the gradient of the state after each step, that of a row's final state at its end included."""

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

    def hook(self, outputs: list[Tensor], time: int) -> None:
        """Replace, in the list of a step's outputs, the states by hooked ones.

        A row's final state is a total of the state at its last step; that term is made again from the hooked state.
        """
        past = None if self.past is None else self.past[time]
        states = [outputs[index] for index in self.states.values()]
        hooked = with_clipped_gradient(states, self.limit, past, self.counted)
        for index, value in zip(self.states.values(), hooked, strict=True):
            outputs[index] = value
        for index, name in self.finals.items():
            if self.elsewhere is not None:
                value = outputs[self.states[name]]
                outputs[index] = value.masked_fill(broadcast_mask(self.elsewhere[time], value), 0)


def _gathered(kind: str, column: list[Tensor], reverse: bool) -> Tensor:
    """An output, from its values of all steps in the order in which they were run."""
    if kind == "state":
        return column[-1]
    if kind == "total":
        return torch.stack(column).sum(0)
    return torch.stack(column[::-1] if reverse else column)
