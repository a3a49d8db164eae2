"""`Sampled`: the draws of one gradient method, summed up as they come: how many, their mean, how far they scatter.

Knows gradients as vectors and what they cost; knows nothing of nets.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leporello.analysis.asked import vector
from leporello.analysis.cost import timed

TIMED = 7  # gradients of each method that are timed: as many of one without chance as of the others


class Sampled:
    """The draws of one method.

    compute   gives the gradients, one for each parameter
    most      draws to be taken, at least two

    The first one makes ready whatever is made once, so it is not timed.
    """

    def __init__(self, compute: Callable[[], Sequence[Tensor]], most: int, device: torch.device) -> None:
        self.compute, self.most, self.device = compute, most, device
        self.count = 0
        self.mean = torch.empty(0)
        self.squares = 0.0  # summed distances from the mean
        self.seconds: list[float] = []
        self.is_random = False

    @property
    def over(self) -> bool:
        """Whether another draw would tell nothing new."""
        return self.count >= (self.most if self.is_random else min(self.most, 1 + TIMED))

    def draw(self) -> None:
        """One gradient more (Welford 1962)."""
        before = self._chance()
        found, seconds = timed(self.compute, self.device)
        one = vector(tuple(found))
        if not self.count:
            self.mean = torch.zeros_like(one)
        elif self.count <= TIMED:
            self.seconds.append(seconds)
        self.is_random |= not torch.equal(before, self._chance()) or (self.count > 0 and not _same(one, self.mean))
        self.count += 1
        if not self.is_random:
            self.mean = one
            return
        away = one - self.mean
        self.mean = self.mean + away / self.count
        self.squares += torch.dot(away, one - self.mean).item()

    @property
    def draws(self) -> int:
        """Those that tell something: of a method without chance it is one."""
        return self.count if self.is_random else 1

    @property
    def variance(self) -> float:
        """The trace of the covariance of one draw."""
        return self.squares / (self.count - 1) if self.is_random else 0.0

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan

    def _chance(self) -> Tensor:
        """Where torch's random numbers stand: a method that draws some is random even if two draws are the same."""
        if self.device.type == "cuda":
            return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state(self.device)])
        return torch.get_rng_state()


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
