"""`Passing`: what of the state's gradient passes from step to step in one call, as a gradient method decides it.

Also the hooks that apply it where torch's own autograd goes through the steps: values are unchanged, gradients are
weighted or clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Passing:
    """What each step of one call passes back to the step before.

    weights   (length, batch): factors of the state's gradient; None where all are 1. With groups
              (groups, length, batch)
    groups    (length, batch) integers: the backward sweep that carries the losses of a step; None where one carries all
    limit     of the norm of a row's state gradient as it arrives at a step; None for no limit
    """

    weights: Tensor | None = None
    groups: Tensor | None = None
    limit: float | None = None

    @property
    def count(self) -> int:
        """The number of backward sweeps."""
        return 1 if self.groups is None or self.weights is None else len(self.weights)

    def one(self, group: int) -> Passing:
        """The weights of one sweep, as if it carried all losses."""
        if self.groups is None or self.weights is None:
            return self
        return Passing(self.weights[group], None, self.limit)

    def masks(self, group: int, sequence: bool) -> Tensor:
        """Where losses enter a sweep: (length, batch) for sequences, (batch,) for final states and totals."""
        assert self.groups is not None
        return (self.groups if sequence else self.groups[-1]) == group


ALL = Passing()  # the exact gradient


def broadcast_mask(mask: Tensor, value: Tensor) -> Tensor:
    """A mask with trailing axes of size one, so that it broadcasts over a value with more axes."""
    return mask.reshape(*mask.shape, *[1] * (value.dim() - mask.dim()))


def entering(gradient: Tensor, mask: Tensor) -> Tensor:
    """The part of a gradient that enters a sweep: zeros elsewhere, even where the gradient is infinite."""
    return torch.where(broadcast_mask(mask, gradient), gradient, 0)


# ---- hooks on the state's gradient


@dataclass
class ClipCount:
    """Counts, during the backward pass, the pairs of step and row at which the gradient was clipped."""

    count: Tensor | float = 0.0


def with_weighted_gradient(state: Tensor, weight: Tensor) -> Tensor:
    """The state; its gradient is multiplied by a weight per row."""
    return _WeightedGradient.apply(state, broadcast_mask(weight, state)) if state.requires_grad else state


def with_clipped_gradient(
    states: Sequence[Tensor], limit: float, past: Tensor | None, counted: ClipCount | None
) -> list[Tensor]:
    """The leaves of a state after a step; the norm of their gradient, over all leaves of a row, has a limit.

    past      (batch,): where a row has ended, there is no limit; None where none has
    counted   counts the rows that are clipped, in the backward pass; None to count nothing
    """
    indices = [index for index, state in enumerate(states) if state.requires_grad]
    leaves = list(states)
    if indices:
        hooked = _ClippedGradient.apply(limit, past, counted, *[states[index] for index in indices])
        for index, state in zip(indices, hooked, strict=True):
            leaves[index] = state
    return leaves


def requiring_gradient(state: Tensor) -> Tensor:
    """A state whose gradient is computed even if it is not wanted: it is part of the norm that is clipped."""
    unchanged = state.requires_grad or not (state.is_floating_point() or state.is_complex())
    return state if unchanged or not torch.is_grad_enabled() else state.detach().requires_grad_()


class _WeightedGradient(torch.autograd.Function):
    """The value itself; its gradient times a weight. A weight of 0 gives 0 even for an infinite gradient."""

    generate_vmap_rule = True  # with `setup_context`: lets torch.func differentiate through it

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


class _ClippedGradient(torch.autograd.Function):
    """The values themselves; their gradients are scaled down together, row by row."""

    @staticmethod
    def forward(ctx: Any, limit: float, past: Tensor | None, counted: ClipCount | None, *values: Tensor) -> Any:
        ctx.limit, ctx.past, ctx.counted = limit, past, counted
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        square = sum(gradient.abs().square().flatten(1).sum(1) for gradient in gradients)
        assert isinstance(square, Tensor)
        exceeds = square > ctx.limit**2
        if ctx.past is not None:
            exceeds = exceeds & ~ctx.past
        if ctx.counted is not None:
            ctx.counted.count = ctx.counted.count + exceeds.sum()
        factor = ctx.limit * square.clamp_min(ctx.limit**2).rsqrt()
        clipped = [
            torch.where(
                broadcast_mask(exceeds, gradient),
                gradient * broadcast_mask(factor, gradient).to(gradient.real.dtype),
                gradient,
            )
            for gradient in gradients
        ]
        return (None, None, None, *clipped)
