"""Curves of what is left of a size against the number of steps back.

Knows sizes at [t, k] and their trend; knows nothing of what they are sizes of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leporello.analysis.trend import SHARE_LEFT, Trend, left_of, relative
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
from leporello.text_table import format_rate, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SINGLE = 12  # single losses that are drawn behind all of them
MOST_LEAVES = 8  # whose curves are told apart
FITTED = (0, (10, 3))  # the line of the rate: dashes longer than any other's


def draw_decay(
    ax: Axes, sizes: Tensor, leaves: Mapping[str, Tensor], trend: Trend, title: str, single: str = "loss"
) -> None:
    """What is left against the number of steps back: single losses pale, all in ink, the fitted rate in red.

    single   what the sizes of one step t are those of
    """
    from matplotlib.ticker import MaxNLocator

    left = left_of(sizes)
    parts = {name: left_of(own) for name, own in leaves.items()} if len(leaves) > 1 else {}
    lags = torch.arange(len(left))
    singles = _singles(sizes)
    for index, curve in enumerate(singles):
        label = None if index else f"single {plural(single)}"
        ax.plot(lags[: len(curve)], curve, color=PALE, linewidth=0.8, zorder=1, label=label)
    point = "o" if len(left) == 1 else ""
    ax.plot(lags, positive_or_nan(left), color=INK, linewidth=1.9, marker=point, label="all of them", zorder=4)
    for index, (name, own) in enumerate(list(parts.items())[:MOST_LEAVES]):
        colour, line = (INK, GREY)[index // 4], LINE_STYLES[1 + index % 4]
        ax.plot(lags, positive_or_nan(own), color=colour, linewidth=1.0, linestyle=line, label=f"in {name}", zorder=3)
    fit = torch.empty(0)
    if trend.rate == trend.rate and len(left) > 1:
        fit = _level(left, trend.rate) * trend.rate ** lags[: trend.ends].double()
        label = f"{format_rate(trend.rate)} a step"
        ax.plot(lags[: trend.ends], fit, color=RED, linewidth=1.3, linestyle=FITTED, label=label, zorder=5)
    label_axes(ax, "steps back", f"relative to the {single}'s own step", title)
    log_axis_powers_of_ten(ax, [left, *parts.values(), *singles, fit, torch.ones(1)])
    low, high = ax.get_ylim()
    inside = ((left > low) & (left < high)).nonzero()
    furthest = int(inside.max()) if len(inside) else len(left) - 1
    ax.set_xlim(-0.03 * max(furthest, 1), 1.03 * max(furthest, 1))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    if low < SHARE_LEFT < high:
        named_level(ax, SHARE_LEFT, "1%")
    level_line(ax, 1)
    legend(ax)


def _singles(sizes: Tensor) -> list[Tensor]:
    """Some of the curves of single steps t, over the whole length, from 0 steps back to t."""
    count = min(SINGLE, len(sizes))
    chosen = sorted({round((index + 1) * len(sizes) / count) - 1 for index in range(count)})
    lines = [positive_or_nan(relative(sizes)[t, : t + 1].flip(0)) for t in chosen if t]
    return [line for line in lines if line.isfinite().any()]


def _level(left: Tensor, rate: float) -> float:
    """Where the line of the rate begins, so that it lies among the curve."""
    lags = torch.arange(len(left), dtype=torch.float64)
    there = (left > torch.finfo(torch.float64).tiny) & left.isfinite()
    logs = left[there].double().log() - lags[there] * torch.tensor(rate, dtype=torch.float64).log()
    return logs.mean().exp().item()
