"""How plots look: ink on paper, one colour for what is fitted, everything legible in grey. And their two forms: a heat
map of step by step, curves against steps.

Knows matplotlib, which is imported here and only when something is drawn; knows nothing of networks.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError, LeporelloError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, GREY, PALE, RED = "#1a1a1a", "#8a8a8a", "#d5d5d5", "#b3202a"
SHADES = ("#f3f5f8", "#cfd8e3", "#8f9fb2", "#44505e", "#1a1a1a")  # from little to much, darker all the way
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (7, 2, 1.5, 2)), (0, (2, 2)))  # one by one, where there are several
TEXT: dict[str, Any] = {"family": "serif", "color": INK}
MOST_DECADES = 10  # that shades or an axis tell apart; what is smaller is as pale as the smallest, or below the axis


def sheets(ax: Any, count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """The axes to draw on, side by side on a figure of their own or those given, and their figure.

    The figure belongs to nobody: no window, no list of open figures.
    """
    if ax is not None:
        given = list(ax) if count > 1 and hasattr(ax, "__len__") else [ax]
        if len(given) != count or not all(hasattr(one, "get_figure") for one in given):
            raise ArgumentError(
                "the argument 'ax' is not what this plot is drawn on.",
                came=f"{len(given)} of type {type(given[0]).__name__}" if given else "none",
                expected=f"{count} matplotlib axes" if count > 1 else "one matplotlib axes",
                tries=f"figure, ax = plt.subplots(1, {count})" if count > 1 else "figure, ax = plt.subplots()",
            )
        return given[0].get_figure(), given
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LeporelloError(
            "a plot needs the package matplotlib.", tries="pip install 'leporello[plots]'; print() needs nothing"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.12, h_pad=0.08, wspace=0.04)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def headed(figure: Figure, own: bool, sentence: str, width: int = 95) -> None:
    """The verdict above a figure of our own."""
    if own:
        figure.suptitle(textwrap.fill(sentence[:1].upper() + sentence[1:] + ".", width), fontsize=12, **TEXT)


def dressed(ax: Axes, title: str, across: str, up: str) -> None:
    """Titles and labels in words; no more lines than needed."""
    ax.set_title(title, fontsize=10.5, pad=8, **TEXT)
    ax.set_xlabel(across, fontsize=9.5, **TEXT)
    ax.set_ylabel(up, fontsize=9.5, **TEXT)
    ax.tick_params(which="major", labelsize=8.5, labelfontfamily="serif", color=INK, labelcolor=INK, width=0.7)
    ax.tick_params(which="minor", color=GREY, width=0.5, length=2)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
        spine.set_linewidth(0.7)


def heat(ax: Axes, sizes: Tensor, title: str, across: str, up: str, shade: str) -> None:
    """Sizes (length, length) at [t, k], t >= k, in shades of their logarithm: t goes down, k to the right.

    across, up, shade   what k, t and the sizes are
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator, NullLocator

    values = sizes.detach().double()
    there = torch.ones_like(values, dtype=torch.bool).tril() & (values > 0) & values.isfinite()
    low, high = _decades([values[there]])
    smallest = values[there].min().item() if there.any() else low
    colours = LinearSegmentedColormap.from_list("paper", list(SHADES)).with_extremes(bad="white")
    shown = torch.where(there, values, torch.nan).numpy()
    image = ax.imshow(shown, cmap=colours, norm=LogNorm(low, high), interpolation="nearest", aspect="equal")
    dressed(ax, title, across, up)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_ylim(len(values) - 0.5, -0.5)
    figure: Any = ax.get_figure()
    beyond = "min" if smallest < low else "neither"
    bar = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.03, aspect=28, extend=beyond)
    bar.set_label(shade, fontsize=9.5, **TEXT)
    bar.outline.set_linewidth(0.7)
    bar.ax.tick_params(which="major", labelsize=8.5, labelfontfamily="serif", color=INK, labelcolor=INK, width=0.7)
    powers(bar.ax.yaxis)
    bar.ax.yaxis.set_minor_locator(NullLocator())


def _decades(values: Sequence[Tensor]) -> tuple[float, float]:
    """The least and the most of what is shown: at least one power of ten apart, and not too many."""
    every = torch.cat([value.detach().double().flatten() for value in values])
    every = every[every.isfinite() & (every > 0)].log10()
    if not len(every):
        return 0.1, 10.0
    low, high = every.min().item(), every.max().item()
    if high - low < 1:
        low, high = math.floor(low + 1e-3), math.ceil(high - 1e-3)
        return (10.0 ** (low - 1), 10.0 ** (high + 1)) if low >= high else (10.0**low, 10.0**high)
    return 10 ** max(low, high - MOST_DECADES), 10**high


def logarithmic(ax: Axes, values: Sequence[Tensor]) -> None:
    """A logarithmic upright axis with room for all values that it can tell apart."""
    from matplotlib.ticker import NullLocator

    low, high = (math.log10(end) for end in _decades(values))
    room = max(0.15, 0.04 * (high - low))
    ax.set_yscale("log")
    ax.set_ylim(10 ** (low - room), 10 ** (high + room))
    powers(ax.yaxis)
    if high - low > 3:
        ax.yaxis.set_minor_locator(NullLocator())


def powers(axis: Axis) -> None:
    """Powers of ten as a person writes them: 0.01, 1, 100, and with an exponent where zeros would be many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def written(value: float, _: Any) -> str:
        exponent = round(math.log10(value)) if value > 0 else 0
        return f"{value:g}" if -3 <= exponent <= 3 else f"$10^{{{exponent}}}$"

    axis.set_major_locator(LogLocator(base=10, numticks=9))
    axis.set_major_formatter(FuncFormatter(written))
    axis.set_minor_formatter(NullFormatter())


def keyed(ax: Axes, *, below: bool = False) -> None:
    """A key to the lines, where it hides least, or below the axes."""
    where: dict[str, Any] = {"loc": "best"}
    if below:
        where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 4}
    key = ax.legend(frameon=True, framealpha=0.85, edgecolor="none", prop={"family": "serif", "size": 8.5}, **where)
    for text in key.get_texts():
        text.set_color(INK)


def mark(ax: Axes, height: float, words: str) -> None:
    """A dotted line across a logarithmic axis, with what it means at its right end."""
    ax.axhline(height, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    low, high = map(math.log10, ax.get_ylim())
    under = (math.log10(height) - low) / (high - low) > 0.15  # where there is room for the words
    ax.annotate(
        words,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(-2, -3 if under else 3),
        textcoords="offset points",
        ha="right",
        va="top" if under else "bottom",
        fontsize=8.5,
        family="serif",
        color=GREY,
    )


def level(ax: Axes, height: float) -> None:
    """A thin line across."""
    ax.axhline(height, color=GREY, linewidth=0.7, zorder=1)


def positive(values: Tensor) -> Tensor:
    """What a logarithmic axis can show; NaN, which leaves a gap, for the rest."""
    return torch.where((values > 0) & values.isfinite(), values, torch.nan)
