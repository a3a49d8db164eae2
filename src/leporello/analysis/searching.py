"""`Search`: zeros of a function, from many starts at once, by damped least squares (Levenberg and Marquardt).

Each start has a damping of its own: little of it is Newton's step, much of it a short step downhill on the square.
Knows a function and its derivative; knows nothing of networks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ENOUGH = 1e-10  # of |f|, relative to the size of the place
LESS, MORE = 0.1, 5.0  # what becomes of the damping behind a good step and behind a bad one
LEAST, MOST = 1e-14, 1e12  # damping; beyond it nothing moves any more


class Search:
    """A search under way.

    places   (starts, numbers): the best so far
    sizes    (starts,): |f| there
    done     (starts,): whether that is a zero
    """

    def __init__(self, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], starts: Tensor) -> None:
        self.function, self.slope = function, slope
        self.places = starts.clone()
        self.values = self._at(self.places)
        self.damping = torch.full((len(starts),), 1e-3, dtype=torch.float64, device=starts.device)

    @property
    def sizes(self) -> Tensor:
        return self.values.norm(dim=-1)

    @property
    def done(self) -> Tensor:
        return self.sizes <= ENOUGH * (1 + self.places.norm(dim=-1))

    @property
    def over(self) -> bool:
        """Whether every start has come to a zero, or to where it moves no more."""
        return bool((self.done | (self.damping >= MOST) | ~self.sizes.isfinite()).all())

    def advance(self) -> None:
        """One step of every start that is still on its way; one that leads uphill is not taken."""
        moving = (~self.done & (self.damping < MOST) & self.sizes.isfinite()).nonzero().squeeze(-1)
        places, values, damping = self.places[moving], self.values[moving], self.damping[moving]
        tried = places + _step(self.slope(places), values, damping)
        found = self._at(tried)
        better = found.norm(dim=-1) < values.norm(dim=-1)  # false for NaN
        self.places[moving] = torch.where(better.unsqueeze(-1), tried, places)
        self.values[moving] = torch.where(better.unsqueeze(-1), found, values)
        self.damping[moving] = torch.where(better, damping * LESS, damping * MORE).clamp(LEAST, MOST)

    def _at(self, places: Tensor) -> Tensor:
        with torch.no_grad():
            return self.function(places)


def _step(slope: Tensor, values: Tensor, damping: Tensor) -> Tensor:
    """The d that makes |slope d + value|^2 + damping |d|^2 least, for each start."""
    numbers = values.shape[-1]
    unit = torch.eye(numbers, dtype=values.dtype, device=values.device)
    below = damping.sqrt().reshape(-1, 1, 1) * unit
    wanted = torch.cat([-values, torch.zeros_like(values)], -1).unsqueeze(-1)
    return torch.linalg.lstsq(torch.cat([slope, below], -2), wanted, driver="gels").solution.squeeze(-1)
