"""What each step of a call passes back to the step before, as the gradient method has it.

Knows methods and padding; knows nothing of plans.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.engine.passing import ALL, Passing
from leporello.gradient.method import Method
from leporello.modules.arguments import Call
from leporello.modules.planning import past_of


def passing_of(call: Call, gradient: Method) -> Passing:
    """What each step passes back to the step before."""
    dtype = next((leaf.real.dtype for _, leaf in call.states if leaf.is_floating_point() or leaf.is_complex()), None)
    past = None if call.lengths is None else past_of(call, call.lengths)
    return passing(gradient, call.length, call.batch, call.device, dtype, past)


def passing(
    gradient: Method,
    length: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype | None,
    past: Tensor | None,
) -> Passing:
    """The same, told in numbers.

    dtype   of the state; None where none of its leaves has a gradient
    past    where rows have ended. Padding does nothing: the gradient of a row's final state comes to the row's end
            whole, and belongs to the losses there
    """
    if dtype is None or not torch.is_grad_enabled():
        return ALL
    weights, groups = gradient.weights(length, batch, device, dtype), gradient.groups(length)
    if groups is not None:
        groups = groups.to(device).unsqueeze(1).expand(length, batch)
    if past is not None and weights is not None:
        weights = weights.masked_fill(past, 1)
        if groups is not None:
            ends = (~past).sum(0, keepdim=True) - 1
            groups = torch.where(past, groups.gather(0, ends), groups)
    return ALL if weights is None and gradient.limit is None else Passing(weights, groups, gradient.limit)
