"""Curves of perplexity: of one run with its baseline and gradients, and of the validation of several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leporello.language.ngrams.baseline import Row
from leporello.plotting import (
    GREY,
    INK,
    LINE_STYLES,
    PALE,
    RED,
    SERIES_COLOURS,
    axes_stacked,
    figure_bytes,
    figure_title,
    label_axes,
    legend,
    log_axis_plain_numbers,
    with_font_glyphs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MetricLines = Sequence[Mapping[str, Any]]  # of metrics.jsonl, in their order

MAX_POINTS = 500  # of a curve; more of them are averaged
MAX_MARKERS = 40  # of a curve; with more points it has none
MIN_NAME_DISTANCE = 0.062  # of two names at the right end of the axis, as a share of its height
MAX_NAME_LENGTH = 28  # letters of a name there
NAME_STYLE: dict[str, Any] = {"fontsize": 8.5, "family": "serif", "parse_math": False, "annotation_clip": False}
DOTTED: Any = (0, (1, 2))
DASHED: Any = LINE_STYLES[1]


def curve_svg(metrics: MetricLines, models: Sequence[Row], title: str) -> bytes:
    """An SVG: perplexity in training and validation, a level for each baseline model; below, the norm of gradients.

    models   the uniform model and n-grams
    """
    figure, (above, below) = axes_stacked(7.6, 5.0, (4, 1))
    unit = _unit(metrics)
    training, validation = _points(metrics, "train", unit), _points(metrics, "validation", unit)
    known = [row for row in models if math.isfinite(row.perplexity)]
    if training:
        above.plot(*zip(*_averaged(training), strict=True), color=GREY, linewidth=0.9, label="training", zorder=2)
    best = None
    if validation:
        marker = "o" if len(validation) <= MAX_MARKERS else ""
        across, up = zip(*validation, strict=True)
        above.plot(across, up, color=INK, linewidth=1.7, marker=marker, markersize=3.2, label="validation", zorder=4)
        best = min(validation, key=lambda point: point[1])
        above.plot(*best, color=RED, marker="o", markersize=5, linestyle="", label="the best", zorder=5)
    heights = [height for _, height in [*training, *validation]] + [row.perplexity for row in known]
    label_axes(above, "", "perplexity")
    log_axis_plain_numbers(above, heights or [1.0, 10.0])
    names = [(row.perplexity, f"{row.name}  {_short(row.perplexity)}", GREY) for row in known]
    for height, _, _ in names:
        above.axhline(height, color=GREY, linewidth=0.8, linestyle=DOTTED, zorder=1)
    _name_at_the_right(above, [*names, *([(best[1], f"network  {_short(best[1])}", RED)] if best else [])])
    if training or validation:
        legend(above)
    _draw_gradients(below, metrics, unit)
    figure_title(figure, title)
    return figure_bytes(figure, "svg")


def compare_svg(runs: Mapping[str, MetricLines]) -> bytes:
    """The validation curves of several runs, by name, as an SVG."""
    return figure_bytes(_compared(runs), "svg")


def compare_png(runs: Mapping[str, MetricLines]) -> bytes:
    """The figure of `compare_svg` as a PNG."""
    return figure_bytes(_compared(runs), "png")


def _compared(runs: Mapping[str, MetricLines]) -> Figure:
    """The figure of validation curves, over epochs if every run has finished one, over tokens otherwise."""
    figure, (ax,) = axes_stacked(7.6, 4.4, (1,))
    unit = "tokens" if any(lines and _unit(lines) == "tokens" for lines in runs.values()) else "epoch"
    heights: list[float] = []
    names: list[tuple[float, str, str]] = []
    best_points: list[tuple[float, float, str]] = []
    for index, (name, lines) in enumerate(runs.items()):
        points = _points(lines, "validation", unit)
        if not points:
            continue
        colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
        style = LINE_STYLES[index // len(SERIES_COLOURS) % len(LINE_STYLES)]
        marker = "o" if len(points) <= MAX_MARKERS else ""
        across, up = zip(*points, strict=True)
        ax.plot(across, up, color=colour, linestyle=style, linewidth=1.5, marker=marker, markersize=3)
        position, best = min(points, key=lambda point: point[1])
        heights += up
        names.append((best, f"{with_font_glyphs(name)[:MAX_NAME_LENGTH]}  {_short(best)}", colour))
        best_points.append((position, best, colour))
    label_axes(ax, "", "validation perplexity")
    _label_x_axis(ax, unit)
    log_axis_plain_numbers(ax, heights or [1.0, 10.0])
    left, right = ax.get_xlim()
    for position, best, colour in best_points:  # a line from the best of each to its name
        ax.plot((position, right), (best, best), color=colour, linewidth=0.7, linestyle=DOTTED, zorder=1)
    ax.set_xlim(left, right)
    _name_at_the_right(ax, names)
    return figure


def _draw_gradients(ax: Axes, metrics: MetricLines, unit: str) -> None:
    """Draw the norm of the gradient, and the learning rate against an axis of its own."""
    norms, rates = _points(metrics, "train", unit, "gradient_norm"), _points(metrics, "train", unit, "rate")
    label_axes(ax, "", "gradient norm")
    _label_x_axis(ax, unit)
    if not norms:
        return
    ax.plot(*zip(*_averaged(norms), strict=True), color=INK, linewidth=0.9)
    ax.set_ylim(0, 1.1 * max(height for _, height in norms) or 1)
    ax.locator_params(axis="y", nbins=3)
    if rates:
        other = ax.twinx()
        other.plot(*zip(*_averaged(rates), strict=True), color=GREY, linewidth=0.9, linestyle=DASHED)
        label_axes(other, "", "learning rate")
        other.spines["right"].set_visible(True)
        other.spines["right"].set_color(PALE)
        other.tick_params(labelcolor=GREY, color=PALE)
        other.yaxis.label.set_color(GREY)
        other.set_ylim(0, 1.1 * max(height for _, height in rates) or 1)
        other.locator_params(axis="y", nbins=3)


def _label_x_axis(ax: Axes, unit: str) -> None:
    """Label the horizontal axis: epochs, or tokens in thousands and millions."""
    from matplotlib.ticker import EngFormatter

    ax.set_xlabel({"epoch": "epochs", "tokens": "tokens"}[unit])
    if unit == "tokens":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _unit(metrics: MetricLines) -> str:
    """The unit of the horizontal axis: epochs if one is finished, else tokens."""
    return "epoch" if max((line["epoch"] for line in metrics), default=0) >= 1 else "tokens"


def _points(metrics: MetricLines, kind: str, unit: str, value: str = "perplexity") -> list[tuple[float, float]]:
    """(unit, value) of each line of one kind, without those that a logarithmic axis cannot show.

    unit, value   keys of the lines: the x and the y of a point
    """
    points = [(float(line[unit]), line.get(value)) for line in metrics if line["kind"] == kind]
    return [(x, y) for x, y in points if isinstance(y, (int, float)) and 0 < y < math.inf]


def _averaged(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, or means over neighbours if there are many: arithmetic ones of x, geometric ones of y."""
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), math.exp(sum(math.log(y) for _, y in group) / len(group)))
        for group in groups
    ]


def _name_at_the_right(ax: Axes, names: Sequence[tuple[float, str, str]]) -> None:
    """Write names to the right of the axes at their heights, moved apart where they would overlap.

    names   height, name and colour of each
    """
    low, high = map(math.log, ax.get_ylim())
    ordered = sorted(names)
    positions = [(math.log(height) - low) / (high - low) for height, _, _ in ordered]
    for (height, name, colour), position in zip(ordered, _spread(positions), strict=True):
        ax.annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(1.02, position),
            textcoords="axes fraction",
            va="center",
            color=colour,
            **NAME_STYLE,
        )


def _spread(positions: Sequence[float]) -> list[float]:
    """Rising positions at least `MIN_NAME_DISTANCE` apart: groups that would overlap spread around their middle."""
    groups: list[list[float]] = []
    for position in positions:
        groups.append([position])
        while len(groups) > 1 and _first(groups[-1]) - _last(groups[-2]) < MIN_NAME_DISTANCE:
            groups[-2:] = [[*groups[-2], *groups[-1]]]
    return [_first(group) + MIN_NAME_DISTANCE * index for group in groups for index in range(len(group))]


def _first(group: Sequence[float]) -> float:
    """The position of the first name of a group that is spread around its middle."""
    return sum(group) / len(group) - MIN_NAME_DISTANCE * (len(group) - 1) / 2


def _last(group: Sequence[float]) -> float:
    """The position of the last name of such a group."""
    return _first(group) + MIN_NAME_DISTANCE * (len(group) - 1)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
