"""`Trend`: how a size changes with the number of steps back, as a rate and in words.

Knows numbers and words; knows nothing of networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.text_table import format_count, format_rate, format_share, plain_table, round_numbers

SHARE_LEFT = 0.01  # what counts as gone
TIMES_AS_LARGE = 1000  # what counts as exploded
STEADY = 2.0  # a change over all steps within this factor counts as none,
STEADY_STEP = 1.1  # if that of one step is within this
UNDERFLOW = 1e-150  # relative: a size of 0 behind one so small may be one that a float cannot hold


@dataclass(frozen=True)
class Trend:
    """A size that changes like rate ** (steps back).

    rate    what each step back multiplies it by; NaN where there is nothing to tell it from
    steps   the largest number of steps back that was looked at
    ends    the number of steps back at which nothing at all is left, None if it never ends
    """

    rate: float
    steps: int
    ends: int | None = None

    @property
    def horizon(self) -> float:
        """The number of steps back after which 1% is left, by the rate, or nothing; infinite where that never is."""
        end = math.inf if self.ends is None else float(self.ends)
        return min(end, math.log(SHARE_LEFT) / math.log(self.rate)) if 0 < self.rate < 1 else end

    @property
    def steady(self) -> bool:
        """Whether it neither shrinks nor grows much over the steps looked at."""
        change = abs(math.log(self.rate))
        return self.ends is None and change * self.steps <= math.log(STEADY) and change <= math.log(STEADY_STEP)

    def verdict(self, what: str = "the gradient") -> str:
        """One sentence.

        >>> Trend(rate=0.93, steps=100).verdict()
        'each step back keeps 0.93 of the gradient: after 64 steps 1% is left'
        >>> Trend(rate=1.4, steps=100).verdict()
        'each step back multiplies the gradient by 1.4: after 21 steps it is 1,000 times as large'
        >>> Trend(rate=1.002, steps=100).verdict()
        'the gradient neither shrinks nor grows: 100 steps back it is 1.2 times as large'
        """
        if self.ends == 1 or (math.isnan(self.rate) and self.steps):
            return f"nothing of {what} passes from one step to the one before"
        if math.isnan(self.rate):
            return f"one step: {what} has no steps to go back through"
        if self.ends is not None and self.horizon == self.ends:
            return f"{what} ends: {self.ends} steps back nothing is left"
        if self.steady:
            change = _compared(self.rate**self.steps)
            return f"{what} neither shrinks nor grows: {format_count(self.steps, 'step')} back {change}"
        if self.rate < 1:
            steps = math.ceil(self.horizon - 1e-9)
            left = "1% is left" if steps <= self.steps else "1% would be left"
            return (
                f"each step back keeps {format_rate(self.rate)} of {what}: after {format_count(steps, 'step')} {left}"
            )
        steps = math.ceil(math.log(TIMES_AS_LARGE) / math.log(self.rate) - 1e-9)
        grown = "it is" if steps <= self.steps else "it would be"
        return (
            f"each step back multiplies {what} by {format_rate(self.rate)}: "
            f"after {format_count(steps, 'step')} {grown} {TIMES_AS_LARGE:,} times as large"
        )


def trend_of(sizes: Tensor) -> Trend:
    """The trend of sizes (length, length), of step t with respect to step k at [t, k], for t >= k.

    The rate is fitted to the logarithms by least squares: one slope for all, and a level for each t, because losses of
    different steps differ in size, and only late ones reach far back.
    """
    length = len(sizes)
    t, k = torch.tril_indices(length, length, device=sizes.device)
    size = sizes[t, k].double()
    there = size.isfinite() & (size > torch.finfo(torch.float64).tiny)
    t, lag, log = t[there], (t - k)[there].double(), size[there].log()
    lag = lag - _mean_by(t, lag, length)
    log = log - _mean_by(t, log, length)
    square = lag.square().sum()
    rate = ((lag * log).sum() / square).exp().item() if square > 0 else math.nan
    return Trend(rate, length - 1, _end(sizes))


def _mean_by(group: Tensor, values: Tensor, groups: int) -> Tensor:
    """For each value the mean of its group."""
    sums = values.new_zeros(groups).index_add(0, group, values)
    counts = values.new_zeros(groups).index_add(0, group, torch.ones_like(values))
    return (sums / counts.clamp_min(1))[group]


def _end(sizes: Tensor) -> int | None:
    """The first number of steps back from which on every size is exactly 0, if that is no underflow."""
    largest = torch.stack([sizes.diagonal(-lag).abs().max() for lag in range(len(sizes))])
    if not largest[0] > 0 or not (largest == 0).any():
        return None
    end = int((largest != 0).nonzero().max()) + 1
    return end if end < len(sizes) and largest[end - 1] > UNDERFLOW * largest.max() else None


def left_of(sizes: Tensor) -> Tensor:
    """What is left so many steps back, (length,): the sum over all t that reach so far, relative to the same at 0."""
    found = []
    for lag in range(len(sizes)):
        there = sizes.diagonal(-lag).sum()
        found.append(there / sizes.diagonal()[lag:].sum())
    return torch.stack(found)


def relative(sizes: Tensor) -> Tensor:
    """The sizes of each t relative to that at t itself; NaN where that is 0."""
    return sizes / torch.where(sizes.diagonal() > 0, sizes.diagonal(), torch.nan).unsqueeze(1)


def _compared(change: float) -> str:
    """What a factor near 1 says."""
    if f"{change:.1f}" == "1.0" and change > 0.995:
        return "it is as large"
    return f"{change:.0%} of it is left" if change < 1 else f"it is {change:.1f} times as large"


def left_table(curves: Mapping[str, Tensor]) -> list[str]:
    """Lines that tell what is left at some numbers of steps back."""
    lags = round_numbers(len(next(iter(curves.values()))) - 1)
    if not lags:
        return []
    rows = [[name, *(format_share(curve[lag].item()) for lag in lags)] for name, curve in curves.items()]
    return plain_table([["steps back", *map(str, lags)], *rows], indent=2).split("\n")
