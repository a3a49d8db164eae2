"""`RandomTruncated`: back-propagation through time that is cut at random, and unbiased.

With `keep` each step and row has an independent draw; with `mean_length` the schedule of Tallec and Ollivier (2017,
ARTBP).
Known shortcoming: the weights of a long stretch without a cut grow without limit, and the variance with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.gradient.through_time import Weighted
from leporello.gradient.work import Work

DEFAULT_KEEP = 0.97  # the probability that a step passes the gradient back


@dataclass(frozen=True, repr=False)
class RandomTruncated(Weighted):
    """What step t passes back is multiplied by x(t): 0 with probability 1 - p(t), else 1 / p(t). Its mean is 1.

        x(t) = bernoulli(p(t)) / p(t)        one draw per step and row, for all leaves of the state

    keep          p: a number, or one for each step; 0.97 by default
    mean_length   instead of it: the mean length of a stretch between cuts; p(t) = 1 - c(d) with
                  c(d) = (alpha - 1) / ((alpha - 2) mean_length + d), d the steps since the last cut
    alpha         how fast longer stretches become rare; larger is nearer to a constant p
    clip_state    see `Backward`; a limit makes it biased

    The mean over many draws is the exact gradient, of the state passed in as well.

    >>> RandomTruncated(keep=0.9)
    RandomTruncated(keep=0.9)
    """

    keep: float | tuple[float, ...] | None = None
    mean_length: float | None = None
    alpha: float = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean_length is not None:
            self._refuse_schedule()
            return
        keep = DEFAULT_KEEP if self.keep is None else self.keep
        values = keep.tolist() if isinstance(keep, Tensor) else keep
        probabilities = list(values) if isinstance(values, Sequence) else [values]
        if not probabilities or not all(_is_number(value) and 0 < value <= 1 for value in probabilities):
            raise ArgumentError(
                "the argument 'keep' holds no probabilities.",
                came=repr(self.keep),
                expected="a number above 0 and at most 1, or one for each step",
                tries="lp.RandomTruncated(keep=0.97)",
            )
        several = isinstance(values, Sequence)
        object.__setattr__(self, "keep", tuple(map(float, probabilities)) if several else float(probabilities[0]))

    def _refuse_schedule(self) -> None:
        if self.keep is not None:
            raise ArgumentError(
                "the arguments 'keep' and 'mean_length' stand side by side.",
                came=f"keep={self.keep!r}, mean_length={self.mean_length!r}",
                expected="one of the two",
                tries=f"lp.RandomTruncated(mean_length={self.mean_length!r})",
            )
        if not _is_number(self.mean_length) or not 1 <= float(self.mean_length or 0) < float("inf"):
            raise ArgumentError(
                "the argument 'mean_length' is no length.",
                came=repr(self.mean_length),
                expected="a number of steps, at least 1",
                tries="lp.RandomTruncated(mean_length=50)",
            )
        if not _is_number(self.alpha) or not 2 < self.alpha < float("inf"):
            raise ArgumentError(
                "the argument 'alpha' is out of range.",
                came=repr(self.alpha),
                expected="a number above 2",
                tries="alpha=4, or 6",
            )

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        time, memory, gives = super().cost(work, length, batch)
        return time, memory, "an unbiased one, with noise" if self.clip_state is None else gives

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The factors x(t), drawn anew for every call."""
        if self.mean_length is not None:
            return self._weights_by_stretches(length, batch, device).to(dtype)
        keep: Any = self.keep
        if isinstance(keep, tuple):
            if len(keep) != length:
                raise ArgumentError(
                    "the argument 'keep' of lp.RandomTruncated has another length than the inputs.",
                    came=f"{len(keep)} probabilities",
                    expected=f"{length}, one for each step",
                    tries="a number, which serves every length",
                )
            keep = torch.tensor(keep, device=device, dtype=dtype).unsqueeze(1)
            return torch.bernoulli(keep.expand(length, batch)) / keep
        return torch.empty(length, batch, device=device, dtype=dtype).bernoulli_(keep).mul_(1 / keep)

    def _weights_by_stretches(self, length: int, batch: int, device: torch.device) -> Tensor:
        """Weights with `mean_length`, (length, batch): for each row the lengths of stretches between cuts are drawn."""
        assert self.mean_length is not None
        since = torch.arange(1, length + 1, device=device, dtype=torch.float64)
        cut = (self.alpha - 1) / ((self.alpha - 2) * self.mean_length + since)
        longer = (1 - cut).clamp_min(0).cumprod(0)  # the probability of no cut in so many steps
        drawn = torch.rand(length, batch, device=device, dtype=torch.float64)
        stretches = torch.searchsorted(-longer, -drawn, right=True) + 1
        ends = stretches.cumsum(0) - 1
        is_cut = torch.zeros(length + 1, batch, dtype=torch.bool, device=device)
        is_cut = is_cut.scatter_(0, ends.clamp_max(length), True)[:length]
        times = torch.arange(length, device=device).unsqueeze(1).expand(length, batch)
        last = torch.where(is_cut, times, -1).cummax(0).values
        before = torch.cat([torch.full_like(last[:1], -1), last[:-1]])
        return torch.where(is_cut, 0, 1 / (1 - cut[times - before - 1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
