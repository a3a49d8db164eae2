"""Logarithmic axes with ticks as a person writes numbers, and two charts.

The charts are a heat map of sizes from step to step, and horizontal bars with their values in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.plotting.theme import INK, LABEL_POINTS, RED, SHADES, TEXT, TICK_POINTS, label_axes, style_ticks

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
    """The ends (low, high) of a logarithmic axis that shows all positive finite values of some tensors.

    At least one power of ten apart, low at most `MAX_DECADES` below high; 0.1 and 10 where there is no such value.
    """
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


# ---- charts

AXIS_TO_LONGEST_BAR = 1.45  # leaves room for the values behind the bars


def heatmap(ax: Axes, sizes: Tensor, title: str, x_label: str, y_label: str, colour_label: str) -> None:
    """Draw sizes (length, length) at [t, k], t >= k, in shades of their logarithm: t goes down, k to the right.

    A place without a positive size is white.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator, NullLocator

    values = sizes.detach().double()
    visible = torch.ones_like(values, dtype=torch.bool).tril() & (values > 0) & values.isfinite()
    low, high = log_range([values[visible]])
    smallest = values[visible].min().item() if visible.any() else low
    colours = LinearSegmentedColormap.from_list("paper", list(SHADES)).with_extremes(bad="white")
    pixels = torch.where(visible, values, torch.nan).numpy()
    image = ax.imshow(pixels, cmap=colours, norm=LogNorm(low, high), interpolation="nearest", aspect="equal")
    label_axes(ax, x_label, y_label, title)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_ylim(len(values) - 0.5, -0.5)
    figure: Any = ax.get_figure()
    extend = "min" if smallest < low else "neither"
    bar = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.03, aspect=28, extend=extend)
    bar.set_label(colour_label, fontsize=LABEL_POINTS, **TEXT)
    bar.outline.set_linewidth(0.7)
    style_ticks(bar.ax)
    power_of_ten_ticks(bar.ax.yaxis)
    bar.ax.yaxis.set_minor_locator(NullLocator())


def bar_chart_height(names: Sequence[str]) -> float:
    """Inches of a figure with a bar for each name."""
    return 1.5 + 0.36 * len(names)


def bar_chart(
    ax: Axes,
    names: Sequence[str] | None,
    values: Sequence[float],
    value_text: Callable[[float], str],
    title: str,
    x_label: str,
    errors: Sequence[float] | None = None,
) -> None:
    """Draw the bars, the first name on top.

    names        None where other axes to the left show them
    values       at least 0; NaN where there is none
    value_text   the text of a value
    errors       of the values, drawn as whiskers
    """
    rows = list(range(len(values)))
    ends = [value + (errors[row] if errors else 0) for row, value in enumerate(values)]
    longest = max((end for end in ends if math.isfinite(end) and end > 0), default=1.0)
    lengths = [value if math.isfinite(value) else 0.0 for value in values]
    ax.barh(rows, lengths, height=0.55, color=SHADES[2], edgecolor="none", zorder=2)
    for row, value in zip(rows, values, strict=True):
        error = errors[row] if errors else 0.0
        if math.isfinite(error) and error > 0:
            ax.errorbar(value, row, xerr=[[min(error, value)], [error]], color=RED, linewidth=1.2, capsize=3, zorder=3)
        ax.annotate(
            value_text(value) if not math.isnan(value) else "not counted",
            (ends[row] if math.isfinite(ends[row]) else 0.0, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=TICK_POINTS,
            family="serif",
            color=INK,
        )
    label_axes(ax, x_label, "", title)
    ax.set_xlim(0, AXIS_TO_LONGEST_BAR * longest)
    ax.set_ylim(len(values) - 0.4, -0.6)
    ax.set_yticks(rows, [] if names is None else list(names), **TEXT)
    ax.tick_params(axis="y", length=0)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
