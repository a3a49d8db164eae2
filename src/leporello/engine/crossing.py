"""What autograd does where a state passes from one step to the next: values go on as they are, gradients are changed.

Serves the loops that torch's own autograd goes through; knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.engine.passing import spread


@dataclass
class Noted:
    """Counts, while a gradient goes back, the pairs of step and row at which it was clipped."""

    count: Tensor | float = 0.0


def weighed(state: Tensor, weight: Tensor) -> Tensor:
    """The state; its gradient is multiplied by a weight per row."""
    return _Weighed.apply(state, spread(weight, state)) if state.requires_grad else state


def clipped(states: Sequence[Tensor], limit: float, past: Tensor | None, noted: Noted | None) -> list[Tensor]:
    """The leaves of a state; the norm of their gradient in a row has a limit, except where the row has ended."""
    moving = [index for index, state in enumerate(states) if state.requires_grad]
    found = list(states)
    if moving:
        changed = _Clipped.apply(limit, past, noted, *[states[index] for index in moving])
        for index, state in zip(moving, changed, strict=True):
            found[index] = state
    return found


def heard(state: Tensor) -> Tensor:
    """A state whose gradient is computed even where nobody asks for it: it counts in the norm of them all."""
    known = state.requires_grad or not (state.is_floating_point() or state.is_complex())
    return state if known or not torch.is_grad_enabled() else state.detach().requires_grad_()


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


class _Clipped(torch.autograd.Function):
    """The values themselves; their gradients are made smaller together, row by row."""

    @staticmethod
    def forward(ctx: Any, limit: float, past: Tensor | None, noted: Noted | None, *values: Tensor) -> Any:
        ctx.limit, ctx.past, ctx.noted = limit, past, noted
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        square = sum(gradient.abs().square().flatten(1).sum(1) for gradient in gradients)
        assert isinstance(square, Tensor)
        acts = square > ctx.limit**2
        if ctx.past is not None:
            acts = acts & ~ctx.past
        if ctx.noted is not None:
            ctx.noted.count = ctx.noted.count + acts.sum()
        factor = ctx.limit * square.clamp_min(ctx.limit**2).rsqrt()
        smaller = [
            torch.where(spread(acts, gradient), gradient * spread(factor, gradient).to(gradient.real.dtype), gradient)
            for gradient in gradients
        ]
        return (None, None, None, *smaller)
