"""Figures and their axes, figures as files, and results that a notebook shows as a picture.

Figures are created without pyplot: they have no window and are on no list of open figures.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from leporello.errors import ArgumentError, MissingPackage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL_HINT = "pip install 'leporello[plots]'"
DOTS_PER_INCH = 144


def matplotlib_missing() -> bool:
    """Whether nothing can be plotted here."""
    return find_spec("matplotlib") is None


def missing_matplotlib_error(tries: str = INSTALL_HINT) -> MissingPackage:
    """The error to raise where a plot is wanted and matplotlib is missing.

    tries   what the user can do
    """
    return MissingPackage("a plot needs the package matplotlib.", tries=tries)


def axes_side_by_side(ax: Any, count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure and `count` axes in a row: those that the caller passed as `ax`, or a new figure's where it is None.

    width, height   of a new figure, in inches
    """
    if ax is None:
        figure = _new_figure(
            width, height, f"{INSTALL_HINT}; print() needs nothing", w_pad=0.12, h_pad=0.08, wspace=0.04
        )
        return figure, list(figure.subplots(1, count, squeeze=False)[0])
    axes = list(ax) if count > 1 and hasattr(ax, "__len__") else [ax]
    if len(axes) != count or not all(hasattr(one, "get_figure") for one in axes):
        raise ArgumentError(
            "the argument 'ax' is not what this plot is drawn on.",
            came=f"{len(axes)} of type {type(axes[0]).__name__}" if axes else "none",
            expected=f"{count} matplotlib axes" if count > 1 else "one matplotlib axes",
            tries=f"figure, ax = plt.subplots(1, {count})" if count > 1 else "figure, ax = plt.subplots()",
        )
    return axes[0].get_figure(), axes


def axes_stacked(width: float, height: float, height_ratios: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A new figure of so many inches, and axes below each other, one for each ratio, that share the horizontal axis."""
    figure = _new_figure(width, height, INSTALL_HINT, w_pad=0.1, h_pad=0.06, hspace=0.02)
    axes = figure.subplots(len(height_ratios), 1, sharex=True, squeeze=False, height_ratios=list(height_ratios))
    return figure, list(axes[:, 0])


def _new_figure(width: float, height: float, tries: str, **paddings: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_matplotlib_error(tries) from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    engine: Any = figure.get_layout_engine()
    engine.set(**paddings)
    return figure


def figure_bytes(figure: Figure, file_format: Literal["png", "svg"]) -> bytes:
    """The figure as the content of a file: the same bytes for the same figure."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "leporello"}):
        metadata = {"Date": None} if file_format == "svg" else None
        figure.savefig(buffer, format=file_format, dpi=DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


class Plottable:
    """A result with a `plot`, which a notebook shows as a picture."""

    def plot(self, ax: Any = None) -> Figure:
        raise NotImplementedError(f"{type(self).__name__} needs plot(ax=None) -> Figure")

    def _repr_png_(self) -> bytes | None:
        """The picture, None where matplotlib is missing: a notebook then shows the text."""
        return None if matplotlib_missing() else figure_bytes(self.plot(), "png")
