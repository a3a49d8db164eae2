"""`run_inside`: an inside, step by step by torch's operators; `repeated`: a value for all steps of a window.

Python runs the steps, unless the target has recorded them (`Target.recorded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from leporello.engine.sweep.program import TimedStage


def run_inside(
    timed: TimedStage,
    steps: int,
    batch: int,
    reverse: bool,
    states: Sequence[Tensor],
    reads: Sequence[tuple[Tensor, int]],
    fixed: Sequence[Tensor],
    places: Sequence[Tensor],
) -> tuple[Sequence[Tensor], list[Tensor]]:
    """Run an inside over a window: returns the states after it, and its `loose` results.

    Values of a window are flat: one axis holds steps times batch. Results are in the order of time, also in reverse.

    states   before the window
    reads    sequences of the window, flat, with their row axis
    fixed    what is the same at every step
    places   memory into which the `placed` results are written, flat, rows first
    """
    count, function = len(timed.states), timed.function
    sequences = [_in_steps(value, axis, steps, batch) for value, axis in reads]
    memories = [_in_steps(place, 0, steps, batch) for place in places]
    if timed.recorded is not None:
        done = timed.recorded.run(steps, batch, reverse, states, sequences, fixed, memories)
        if done is not None:
            return done
    inputs: list[Sequence[Tensor]] = [value.unbind(0) for value in sequences]
    outputs: list[Sequence[Tensor]] = [memory.unbind(0) for memory in memories]
    del sequences, memories
    if reverse:
        inputs, outputs = [steps_of[::-1] for steps_of in inputs], [steps_of[::-1] for steps_of in outputs]
    columns: list[list[Tensor]] = [[] for _ in timed.loose]
    inputs_by_step: Any = zip(*inputs, strict=True) if inputs else repeat((), steps)
    outputs_by_step: Any = zip(*outputs, strict=True) if outputs else repeat((), steps)
    for values, memory in zip(inputs_by_step, outputs_by_step, strict=True):
        results = function(batch, *states, *values, *fixed, *memory)
        states = results[:count]
        for column, (index, _) in zip(columns, timed.loose, strict=True):
            column.append(results[index])
    del inputs, results, values
    stacked = []
    for _, node in timed.loose:
        axis = _axis(timed, node)
        column = columns.pop(0)
        stacked.append(torch.stack(column[::-1] if reverse else column, axis).flatten(axis, axis + 1))
    return states, stacked


def _axis(timed: TimedStage, node: Any) -> int:
    """The row axis of a result (a node) of an inside."""
    return next(rows for written, rows in timed.writes if written is node and rows is not None)


def _in_steps(value: Tensor, axis: int, steps: int, batch: int) -> Tensor:
    """A flat value as [steps, ...], each step contiguous."""
    by_steps = value.unflatten(axis, (steps, batch))
    return by_steps.movedim(axis, 0).contiguous() if axis else by_steps


def repeated(value: Tensor, axis: int, steps: int) -> Tensor:
    """A value that is the same at every step, repeated for each step of a window, flat.

    axis   its row axis
    """
    one_step = value.unsqueeze(axis)
    return one_step.expand(*value.shape[:axis], steps, *value.shape[axis:]).flatten(axis, axis + 1).contiguous()
