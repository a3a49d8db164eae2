"""The engine `reference`: the whole graph, one step at a time, in plain PyTorch with its own autograd.

The meaning of every other engine. Any device, any operator, rows may meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.loop.loop import Loop


def run(
    loop: Loop,
    step: Callable[..., Any],
    values: Sequence[Tensor],
    length: int,
    batch: int,
    weight: Tensor | None = None,
) -> list[Tensor]:
    """Outputs in the order of the loop's.

    for each step:  outputs, states, terms = step(inputs of this step, invariants, states);  totals += terms

    weight   (length, batch): of what each step passes back to the step before; all of it by default
    """
    timed = [port.kind in ("sequence", "draw") for port in loop.inputs]
    present = list(values)
    places = {port.name: index for index, port in enumerate(loop.inputs) if port.kind == "state"}
    columns: list[list[Tensor]] = [[] for _ in loop.outputs]
    with torch.autocast(values[0].device.type if values else "cpu", enabled=False):
        for time in reversed(range(length)) if loop.reverse else range(length):
            if weight is not None:
                for place in places.values():
                    present[place] = _weighed(present[place], weight[time])
            read = [value[time] if moves else value for value, moves in zip(present, timed, strict=True)]
            for index, (port, value) in enumerate(zip(loop.outputs, step(batch, *read), strict=True)):
                columns[index].append(value)
                if port.kind == "state":
                    present[places[port.name]] = value
    return [_gathered(port.kind, column, loop.reverse) for port, column in zip(loop.outputs, columns, strict=True)]


def _weighed(state: Tensor, weight: Tensor) -> Tensor:
    if not state.requires_grad:
        return state
    wide = weight.reshape(-1, *[1] * (state.dim() - 1))
    return _Weighed.apply(state, wide)


class _Weighed(torch.autograd.Function):
    """The value itself; its gradient times a weight. Where that is 0 nothing passes, infinity included."""

    generate_vmap_rule = True  # with `setup_context`: torch.func goes through it

    @staticmethod
    def forward(value: Tensor, weight: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return torch.where(weight == 0, 0, gradient * weight.to(gradient.real.dtype)), None


def _gathered(kind: str, column: list[Tensor], reverse: bool) -> Tensor:
    if kind == "state":
        return column[-1]
    if kind == "total":
        return torch.stack(column).sum(0)
    return torch.stack(column[::-1] if reverse else column)
