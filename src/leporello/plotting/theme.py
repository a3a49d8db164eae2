"""The look of plots: colours, line styles, fonts, titles, labels, legends and horizontal lines."""

from __future__ import annotations

import functools
import math
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, RED = "#1a1a1a", "#8a8a8a", "#d5d5d5", "#b3202a"
SERIES_COLOURS = (INK, RED, "#2f6690", GREY, "#b58900", "#5b7f3b")  # for several curves of the same importance
SHADES = ("#f3f5f8", "#cfd8e3", "#8f9fb2", "#44505e", "#1a1a1a")  # from small to large, darker all the way
LINE_STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (7, 2, 1.5, 2)), (0, (2, 2)))
DOTTED = (0, (1, 2))
TEXT: dict[str, Any] = {"family": "serif", "color": INK}
LABEL_POINTS, TICK_POINTS = 9.5, 8.5
MISSING_GLYPHS = "…"  # stands for a run of letters that the font does not have


def label_axes(ax: Axes, x_label: str, y_label: str, title: str = "") -> None:
    """Label the axes in words, and draw no more lines than needed: ticks, the left and the lower spine."""
    if title:
        ax.set_title(title, fontsize=10.5, pad=8, **TEXT)
    ax.set_xlabel(x_label, fontsize=LABEL_POINTS, **TEXT)
    ax.set_ylabel(y_label, fontsize=LABEL_POINTS, **TEXT)
    style_ticks(ax)
    ax.tick_params(which="minor", color=GREY, width=0.5, length=2)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
        spine.set_linewidth(0.7)


def style_ticks(ax: Axes) -> None:
    """Thin major ticks with small labels."""
    ax.tick_params(which="major", labelsize=TICK_POINTS, labelfontfamily="serif", color=INK, labelcolor=INK, width=0.7)


def figure_title(figure: Figure, title: str, points: float = 11.5) -> None:
    """A title above all axes; a dollar sign is a dollar sign."""
    figure.suptitle(with_font_glyphs(title), fontsize=points, parse_math=False, **TEXT)


def verdict_title(figure: Figure, sentence: str, line_length: int = 95) -> None:
    """A sentence without capital and full stop as a title, broken into lines of so many letters."""
    figure_title(figure, textwrap.fill(sentence[:1].upper() + sentence[1:] + ".", line_length), 12)


def legend(ax: Axes, *, below: bool = False) -> None:
    """A legend where it hides least, or below the axes."""
    place: dict[str, Any] = {"loc": "best"}
    if below:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 4}
    font = {"family": "serif", "size": TICK_POINTS}
    box = ax.legend(frameon=True, framealpha=0.85, edgecolor="none", prop=font, **place)
    for text in box.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)


def level_line(ax: Axes, height: float) -> None:
    """A thin horizontal line."""
    ax.axhline(height, color=GREY, linewidth=0.7, zorder=1)


def named_level(ax: Axes, height: float, name: str) -> None:
    """A dotted horizontal line on a logarithmic axis, with its name at the right end."""
    ax.axhline(height, color=GREY, linewidth=0.9, linestyle=DOTTED, zorder=1)
    low, high = map(math.log10, ax.get_ylim())
    name_below = (math.log10(height) - low) / (high - low) > 0.15  # where there is room for it
    ax.annotate(
        name,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(-2, -3 if name_below else 3),
        textcoords="offset points",
        ha="right",
        va="top" if name_below else "bottom",
        fontsize=TICK_POINTS,
        family="serif",
        color=GREY,
    )


def with_font_glyphs(text: str) -> str:
    """The text in letters that the font of plots has; dots for a run of others, such as Chinese ones."""
    result = ""
    for letter in text:
        if letter == "\n" or _in_font(letter):
            result += letter
        elif not result.endswith(MISSING_GLYPHS):
            result += MISSING_GLYPHS
    return result


@functools.cache
def _in_font(letter: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    file = findfont(FontProperties(family="serif"))
    return letter.isprintable() and get_font(file).get_char_index(ord(letter)) != 0
