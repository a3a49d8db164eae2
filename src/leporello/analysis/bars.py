"""Bars that lie on their side, one for each name, with their value in words at the end.

Knows names and numbers; knows nothing of what they measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leporello.analysis.paper import INK, RED, SHADES, TEXT, dressed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOM = 1.45  # how many times as long as the longest bar the axis is: values stand behind the bars


def height_of(names: Sequence[str]) -> float:
    """Inches of a figure with so many bars."""
    return 1.5 + 0.36 * len(names)


def draw_bars(
    ax: Axes,
    names: Sequence[str] | None,
    values: Sequence[float],
    words: Callable[[float], str],
    title: str,
    across: str,
    errors: Sequence[float] | None = None,
) -> None:
    """The first name on top.

    names    None where they stand beside other axes already
    values   at least 0; NaN where there is none
    words    for a value
    errors   of the values, drawn as whiskers
    """
    places = list(range(len(values)))
    ends = [value + (errors[index] if errors else 0) for index, value in enumerate(values)]
    finite = [end for end in ends if math.isfinite(end) and end > 0]
    longest = max(finite, default=1.0)
    shown = [value if math.isfinite(value) else 0.0 for value in values]
    ax.barh(places, shown, height=0.55, color=SHADES[2], edgecolor="none", zorder=2)
    for place, value in zip(places, values, strict=True):
        error = errors[place] if errors else 0.0
        end = ends[place] if math.isfinite(ends[place]) else 0.0
        if math.isfinite(error) and error > 0:
            ax.errorbar(
                value, place, xerr=[[min(error, value)], [error]], color=RED, linewidth=1.2, capsize=3, zorder=3
            )
        ax.annotate(
            words(value) if not math.isnan(value) else "not counted",
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            family="serif",
            color=INK,
        )
    dressed(ax, title, across, "")
    ax.set_xlim(0, ROOM * longest)
    ax.set_ylim(len(values) - 0.4, -0.6)
    ax.set_yticks(places, [] if names is None else list(names), **TEXT)
    ax.tick_params(axis="y", length=0)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
