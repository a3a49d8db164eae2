"""How plots of runs look: ink on paper, one colour for what counts, everything legible in grey; as files.

Knows matplotlib, which is imported here and only when something is drawn; knows nothing of runs.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from leporello.errors import LeporelloError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, RED = "#1a1a1a", "#8a8a8a", "#d5d5d5", "#b3202a"
TEXT: dict[str, Any] = {"family": "serif", "color": INK}
DOTS_PER_INCH = 144
NEEDED = "pip install 'leporello[plots]'"
GAP = "…"  # for letters that the font does not have


def plots_missing() -> bool:
    """Whether nothing can be plotted here."""
    return find_spec("matplotlib") is None


def sheets(width: float, height: float, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure that belongs to nobody, and axes below each other that share the horizontal axis."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LeporelloError("a plot needs the package matplotlib.", tries=NEEDED) from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.1, h_pad=0.06, hspace=0.02)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=list(heights))
    return figure, list(axes[:, 0])


def dressed(ax: Axes, across: str, up: str) -> None:
    """Labels in words; no more lines than needed."""
    ax.set_xlabel(across, fontsize=9.5, **TEXT)
    ax.set_ylabel(up, fontsize=9.5, **TEXT)
    ax.tick_params(which="major", labelsize=8.5, labelfontfamily="serif", color=INK, labelcolor=INK, width=0.7)
    ax.tick_params(which="minor", color=GREY, width=0.5, length=2)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
        spine.set_linewidth(0.7)


def perplexities(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic upright axis with room for all values, and numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = min(values), max(values)
    ax.set_yscale("log")
    room = max(high / low, 1.05) ** 0.06
    ax.set_ylim(low / room, high * room)
    steps: Any = MaxNLocator(nbins=6) if high / low < 4 else LogLocator(base=10, subs=(1, 2, 5))
    ax.yaxis.set_major_locator(steps)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def keyed(ax: Axes) -> None:
    """A key to the lines, where it hides least."""
    key = ax.legend(loc="best", framealpha=0.85, edgecolor="none", prop={"family": "serif", "size": 8.5})
    for text in key.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)


def headed(figure: Figure, title: str) -> None:
    figure.suptitle(drawable(title), fontsize=11.5, parse_math=False, **TEXT)


def drawable(text: str) -> str:
    """The text in letters that the font of plots has; dots for a stretch of others, as Chinese."""
    found = ""
    for letter in text:
        if _has(letter):
            found += letter
        elif not found.endswith(GAP):
            found += GAP
    return found


@functools.cache
def _has(letter: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    file = findfont(FontProperties(family="serif"))
    return letter.isprintable() and get_font(file).get_char_index(ord(letter)) != 0


def picture(figure: Figure, form: str) -> bytes:
    """The figure as a file: the same bytes for the same figure.

    form   "svg" or "png"
    """
    from matplotlib import rc_context

    found = io.BytesIO()
    with rc_context({"svg.hashsalt": "leporello"}):
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(found, format=form, dpi=DOTS_PER_INCH, metadata=metadata)
    return found.getvalue()
