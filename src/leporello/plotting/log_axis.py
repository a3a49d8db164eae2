"""Logarithmic vertical axes, with room for the values and with ticks as a person writes numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

MAX_DECADES = 10  # that shades or an axis show; smaller values are as pale as the smallest, or below the axis


def log_axis_powers_of_ten(ax: Axes, values: Sequence[Tensor]) -> None:
    """A logarithmic vertical axis for values of any range: at most `MAX_DECADES` of it, ticks at powers of ten."""
    from matplotlib.ticker import NullLocator

    low, high = (math.log10(end) for end in log_range(values))
    margin = max(0.15, 0.04 * (high - low))
    ax.set_yscale("log")
    ax.set_ylim(10 ** (low - margin), 10 ** (high + margin))
    power_of_ten_ticks(ax.yaxis)
    if high - low > 3:
        ax.yaxis.set_minor_locator(NullLocator())


def log_axis_plain_numbers(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic vertical axis for positive values of a small range, ticks at 1, 2, 5, 10 or closer."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = min(values), max(values)
    ax.set_yscale("log")
    margin = max(high / low, 1.05) ** 0.06
    ax.set_ylim(low / margin, high * margin)
    ticks: Any = MaxNLocator(nbins=6) if high / low < 4 else LogLocator(base=10, subs=(1, 2, 5))
    ax.yaxis.set_major_locator(ticks)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def log_range(values: Sequence[Tensor]) -> tuple[float, float]:
    """The least and the largest value to show: at least one power of ten apart, at most `MAX_DECADES`."""
    logs = torch.cat([value.detach().double().flatten() for value in values])
    logs = logs[logs.isfinite() & (logs > 0)].log10()
    if not len(logs):
        return 0.1, 10.0
    low, high = logs.min().item(), logs.max().item()
    if high - low < 1:
        low, high = math.floor(low + 1e-3), math.ceil(high - 1e-3)
        return (10.0 ** (low - 1), 10.0 ** (high + 1)) if low >= high else (10.0**low, 10.0**high)
    return 10 ** max(low, high - MAX_DECADES), 10**high


def power_of_ten_ticks(axis: Axis) -> None:
    """Ticks such as 0.01, 1, 100, and with an exponent where there would be many zeros."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def label(value: float, _: Any) -> str:
        exponent = round(math.log10(value)) if value > 0 else 0
        return f"{value:g}" if -3 <= exponent <= 3 else f"$10^{{{exponent}}}$"

    axis.set_major_locator(LogLocator(base=10, numticks=9))
    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())


def positive_or_nan(values: Tensor) -> Tensor:
    """The values that a logarithmic axis can show; NaN, which leaves a gap in a curve, for the others."""
    return torch.where((values > 0) & values.isfinite(), values, torch.nan)
