"""An inside, step by step with torch's operators; and values that are the same at every step, spread over a window.

Knows stages that are ready to run; knows nothing of windows' places in the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from leporello.engine.program import Timed


def by_operators(
    timed: Timed,
    steps: int,
    batch: int,
    reverse: bool,
    states: Sequence[Tensor],
    reads: Sequence[tuple[Tensor, int]],
    fixed: Sequence[Tensor],
    rooms: Sequence[Tensor],
) -> tuple[Sequence[Tensor], list[Tensor]]:
    """The states after the window, and the values that found no room of their own; all flat.

    reads   what varies, with its row axis
    rooms   memory for what is written straight to its place
    """
    count, function = len(timed.states), timed.function
    columns = [_by_steps(value, axis, steps, batch) for value, axis in reads]
    places = [_by_steps(room, 0, steps, batch) for room in rooms]
    if reverse:
        columns, places = [column[::-1] for column in columns], [place[::-1] for place in places]
    made: list[list[Tensor]] = [[] for _ in timed.loose]
    each: Any = zip(*columns, strict=True) if columns else repeat((), steps)
    rest: Any = zip(*places, strict=True) if places else repeat((), steps)
    for read, place in zip(each, rest, strict=True):
        results = function(batch, *states, *read, *fixed, *place)
        states = results[:count]
        for column, (index, _) in zip(made, timed.loose, strict=True):
            column.append(results[index])
    del columns, results, read
    found = []
    for _, node in timed.loose:
        axis = _axis(timed, node)
        column = made.pop(0)
        found.append(torch.stack(column[::-1] if reverse else column, axis).flatten(axis, axis + 1))
    return states, found


def _axis(timed: Timed, node: Any) -> int:
    return next(rows for written, rows in timed.writes if written is node and rows is not None)


def _by_steps(value: Tensor, axis: int, steps: int, batch: int) -> Sequence[Tensor]:
    """A flat value, one part a step, each in one piece."""
    whole = value.unflatten(axis, (steps, batch))
    return (whole.movedim(axis, 0).contiguous() if axis else whole).unbind(0)


def spread(value: Tensor, axis: int, steps: int) -> Tensor:
    """What is the same at every step, once for each step of a window, flat."""
    whole = value.unsqueeze(axis)
    return whole.expand(*value.shape[:axis], steps, *value.shape[axis:]).flatten(axis, axis + 1).contiguous()
