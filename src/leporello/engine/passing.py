"""`Passing`: what of a gradient passes from step to step, as a gradient method has decided it for one call.

Knows weights by step and row; knows nothing of methods.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Passing:
    """Of one call.

    weights   (length, batch): of what each step passes back to the step before; None for all of it. With groups
              (groups, length, batch)
    groups    (length, batch) integers: the sweep back that carries the losses of a step; None where one carries all
    limit     of the norm of a row's state gradient as it arrives at a step; None for none
    """

    weights: Tensor | None = None
    groups: Tensor | None = None
    limit: float | None = None

    @property
    def count(self) -> int:
        """How many sweeps there are."""
        return 1 if self.groups is None or self.weights is None else len(self.weights)

    def one(self, group: int) -> Passing:
        """The part of one sweep, with all losses in it."""
        if self.groups is None or self.weights is None:
            return self
        return Passing(self.weights[group], None, self.limit)

    def masks(self, group: int, sequence: bool) -> Tensor:
        """Where losses enter a sweep: (length, batch) for sequences, (batch,) for what is there at the end."""
        assert self.groups is not None
        return (self.groups if sequence else self.groups[-1]) == group


ALL = Passing()  # the exact gradient


def spread(mask: Tensor, value: Tensor) -> Tensor:
    """A mask with axes of size one behind its own, as many as a value has more."""
    return mask.reshape(*mask.shape, *[1] * (value.dim() - mask.dim()))


def entering(gradient: Tensor, mask: Tensor) -> Tensor:
    """What of a gradient enters a sweep; nothing of what does not, infinity included."""
    return torch.where(spread(mask, gradient), gradient, 0)
