"""`Trend`: how a size changes with the number of steps back, as a rate, in words, as a table and as a plot.

The sizes come as a matrix (length, length): at [t, k] that of a derivative of step t with respect to step k, t >= k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leporello.plotting import (
    GREY,
    INK,
    LINE_STYLES,
    PALE,
    RED,
    label_axes,
    legend,
    level_line,
    log_axis_powers_of_ten,
    named_level,
    positive_or_nan,
)
from leporello.text_table import format_count, format_rate, format_share, plain_table, plural, round_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VANISHED_SHARE = 0.01
EXPLODED_FACTOR = 1000
STEADY_FACTOR = 2.0  # a change over all steps within this factor counts as none,
STEADY_STEP_FACTOR = 1.1  # if that of one step is within this one
UNDERFLOW_SHARE = 1e-150  # a size of 0 that follows one so small, relative to the largest, may have underflowed
MAX_SINGLE_CURVES = 12  # curves of single steps t that are drawn
MAX_LEAF_CURVES = 8
FIT_LINE_STYLE = (0, (10, 3))  # dashes longer than those of any other line


@dataclass(frozen=True)
class Trend:
    """A size that changes like rate ** (steps back).

    rate    what each step back multiplies it by; NaN where there is nothing to fit
    steps   the largest number of steps back in the data
    ends    the number of steps back at which nothing at all is left, None if it never ends
    """

    rate: float
    steps: int
    ends: int | None = None

    @property
    def horizon(self) -> float:
        """The number of steps back after which 1% is left, by the rate, or nothing; infinite where that never is."""
        end = math.inf if self.ends is None else float(self.ends)
        return min(end, math.log(VANISHED_SHARE) / math.log(self.rate)) if 0 < self.rate < 1 else end

    @property
    def steady(self) -> bool:
        """Whether the size neither shrinks nor grows much over all steps."""
        change = abs(math.log(self.rate))
        return (
            self.ends is None
            and change * self.steps <= math.log(STEADY_FACTOR)
            and change <= math.log(STEADY_STEP_FACTOR)
        )

    def verdict(self, what: str = "the gradient") -> str:
        """The trend in one sentence.

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
            change = _change_in_words(self.rate**self.steps)
            return f"{what} neither shrinks nor grows: {format_count(self.steps, 'step')} back {change}"
        if self.rate < 1:
            steps = math.ceil(self.horizon - 1e-9)
            left = "1% is left" if steps <= self.steps else "1% would be left"
            return (
                f"each step back keeps {format_rate(self.rate)} of {what}: after {format_count(steps, 'step')} {left}"
            )
        steps = math.ceil(math.log(EXPLODED_FACTOR) / math.log(self.rate) - 1e-9)
        grown = "it is" if steps <= self.steps else "it would be"
        return (
            f"each step back multiplies {what} by {format_rate(self.rate)}: "
            f"after {format_count(steps, 'step')} {grown} {EXPLODED_FACTOR:,} times as large"
        )


def _change_in_words(factor: float) -> str:
    """What a factor near 1 says."""
    if f"{factor:.1f}" == "1.0" and factor > 0.995:
        return "it is as large"
    return f"{factor:.0%} of it is left" if factor < 1 else f"it is {factor:.1f} times as large"


# ---- from sizes to a trend


def fit_trend(sizes: Tensor) -> Trend:
    """The trend of sizes (length, length).

    The rate is fitted to the logarithms by least squares: one slope for all, and a level for each t, because losses of
    different steps differ in size, and only late ones reach far back.
    """
    length = len(sizes)
    t, k = torch.tril_indices(length, length, device=sizes.device)
    size = sizes[t, k].double()
    usable = size.isfinite() & (size > torch.finfo(torch.float64).tiny)
    t, lag, log = t[usable], (t - k)[usable].double(), size[usable].log()
    lag = lag - _group_means(t, lag, length)
    log = log - _group_means(t, log, length)
    square = lag.square().sum()
    rate = ((lag * log).sum() / square).exp().item() if square > 0 else math.nan
    return Trend(rate, length - 1, _first_lag_of_zeros(sizes))


def _group_means(group: Tensor, values: Tensor, groups: int) -> Tensor:
    """For each value the mean of its group."""
    sums = values.new_zeros(groups).index_add(0, group, values)
    counts = values.new_zeros(groups).index_add(0, group, torch.ones_like(values))
    return (sums / counts.clamp_min(1))[group]


def _first_lag_of_zeros(sizes: Tensor) -> int | None:
    """The number of steps back from which on every size is exactly 0; None if never, or perhaps by underflow."""
    largest = torch.stack([sizes.diagonal(-lag).abs().max() for lag in range(len(sizes))])
    if not largest[0] > 0 or not (largest == 0).any():
        return None
    end = int((largest != 0).nonzero().max()) + 1
    return end if end < len(sizes) and largest[end - 1] > UNDERFLOW_SHARE * largest.max() else None


def share_left(sizes: Tensor) -> Tensor:
    """The share that is left so many steps back, (length,): the sum over all t that reach so far, relative to lag 0."""
    shares = []
    for lag in range(len(sizes)):
        shares.append(sizes.diagonal(-lag).sum() / sizes.diagonal()[lag:].sum())
    return torch.stack(shares)


def relative_to_own_step(sizes: Tensor) -> Tensor:
    """The sizes of each t relative to that at t itself; NaN where that is 0."""
    return sizes / torch.where(sizes.diagonal() > 0, sizes.diagonal(), torch.nan).unsqueeze(1)


# ---- table and plot


def share_left_table(curves: Mapping[str, Tensor]) -> list[str]:
    """The lines of a table of curves (length,), by name, at some numbers of steps back; none for a length of 1."""
    lags = round_numbers(len(next(iter(curves.values()))) - 1)
    if not lags:
        return []
    rows = [[name, *(format_share(curve[lag].item()) for lag in lags)] for name, curve in curves.items()]
    return plain_table([["steps back", *map(str, lags)], *rows], indent=2).split("\n")


def plot_share_left(
    ax: Axes, sizes: Tensor, leaves: Mapping[str, Tensor], trend: Trend, title: str, source: str = "loss"
) -> None:
    """Draw the share left against the number of steps back: single steps t pale, all in ink, the fitted rate in red.

    leaves   the sizes by state leaf; drawn where there are several
    source   what step t has whose derivatives these are: "loss", "output"
    """
    from matplotlib.ticker import MaxNLocator

    left = share_left(sizes)
    by_leaf = {name: share_left(leaf_sizes) for name, leaf_sizes in leaves.items()} if len(leaves) > 1 else {}
    lags = torch.arange(len(left))
    singles = _single_curves(sizes)
    for index, curve in enumerate(singles):
        label = None if index else f"single {plural(source)}"
        ax.plot(lags[: len(curve)], curve, color=PALE, linewidth=0.8, zorder=1, label=label)
    marker = "o" if len(left) == 1 else ""
    ax.plot(lags, positive_or_nan(left), color=INK, linewidth=1.9, marker=marker, label="all of them", zorder=4)
    for index, (name, curve) in enumerate(list(by_leaf.items())[:MAX_LEAF_CURVES]):
        colour, style = (INK, GREY)[index // 4], LINE_STYLES[1 + index % 4]
        curve = positive_or_nan(curve)
        ax.plot(lags, curve, color=colour, linewidth=1.0, linestyle=style, label=f"in {name}", zorder=3)
    fit = torch.empty(0)
    if not math.isnan(trend.rate) and len(left) > 1:
        fit = _fit_level(left, trend.rate) * trend.rate ** lags[: trend.ends].double()
        label = f"{format_rate(trend.rate)} a step"
        ax.plot(lags[: trend.ends], fit, color=RED, linewidth=1.3, linestyle=FIT_LINE_STYLE, label=label, zorder=5)
    label_axes(ax, "steps back", f"relative to the {source}'s own step", title)
    log_axis_powers_of_ten(ax, [left, *by_leaf.values(), *singles, fit, torch.ones(1)])
    low, high = ax.get_ylim()
    visible = ((left > low) & (left < high)).nonzero()
    furthest = max(int(visible.max()) if len(visible) else len(left) - 1, 1)
    ax.set_xlim(-0.03 * furthest, 1.03 * furthest)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    if low < VANISHED_SHARE < high:
        named_level(ax, VANISHED_SHARE, "1%")
    level_line(ax, 1)
    legend(ax)


def _single_curves(sizes: Tensor) -> list[Tensor]:
    """The curves of some single steps t, spread over the whole length, from 0 steps back to t."""
    count = min(MAX_SINGLE_CURVES, len(sizes))
    chosen = sorted({round((index + 1) * len(sizes) / count) - 1 for index in range(count)})
    curves = [positive_or_nan(relative_to_own_step(sizes)[t, : t + 1].flip(0)) for t in chosen if t]
    return [curve for curve in curves if curve.isfinite().any()]


def _fit_level(left: Tensor, rate: float) -> float:
    """The value at lag 0 of a line of this rate through the curve: the mean distance of the logarithms is 0."""
    lags = torch.arange(len(left), dtype=torch.float64)
    usable = (left > torch.finfo(torch.float64).tiny) & left.isfinite()
    logs = left[usable].double().log() - lags[usable] * torch.tensor(rate, dtype=torch.float64).log()
    return logs.mean().exp().item()
