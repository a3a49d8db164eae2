"""How perplexity fell: of one run beside n-grams, and of several runs beside each other.

Knows lines of metrics and rows of models; how plots look is told by `ink`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leporello.language.ngrams.baseline import Row
from leporello.language.report.plot_style import (
    GREY,
    INK,
    PALE,
    RED,
    drawable,
    dressed,
    headed,
    keyed,
    perplexities,
    picture,
    sheets,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]

MOST = 500  # points of a curve; more of them are averaged
SINGLE = 40  # validations up to which each is a point
APART = 0.062  # of the axis: the least distance of two names at its right end
LONGEST = 28  # letters of a name there
WORDS: dict[str, Any] = {"fontsize": 8.5, "family": "serif", "parse_math": False, "annotation_clip": False}
COLOURS = (INK, RED, "#2f6690", "#8a8a8a", "#b58900", "#5b7f3b")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))


def curve_svg(metrics: Lines, models: Sequence[Row], title: str) -> bytes:
    """Perplexity in training and validation, with a line for each other model; below, how large gradients were.

    metrics   lines of metrics.jsonl, in their order
    models    the n-grams, and the uniform model
    """
    figure, (above, below) = sheets(7.6, 5.0, (4, 1))
    unit = _unit(metrics)
    training, validation = _points(metrics, "train", unit), _points(metrics, "validation", unit)
    known = [row for row in models if math.isfinite(row.perplexity)]
    if training:
        above.plot(*zip(*_fewer(training), strict=True), color=GREY, linewidth=0.9, label="training", zorder=2)
    best = None
    if validation:
        mark = "o" if len(validation) <= SINGLE else ""
        across, up = zip(*validation, strict=True)
        above.plot(across, up, color=INK, linewidth=1.7, marker=mark, markersize=3.2, label="validation", zorder=4)
        best = min(validation, key=lambda one: one[1])
        above.plot(*best, color=RED, marker="o", markersize=5, linestyle="", label="the best", zorder=5)
    heights = [height for _, height in [*training, *validation]] + [row.perplexity for row in known]
    dressed(above, "", "perplexity")
    perplexities(above, heights or [1.0, 10.0])
    names = [(row.perplexity, f"{row.name}  {_short(row.perplexity)}", GREY) for row in known]
    for height, _, _ in names:
        above.axhline(height, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    _name_at_the_right(above, [*names, *([(best[1], f"network  {_short(best[1])}", RED)] if best else [])])
    if training or validation:
        keyed(above)
    _draw_gradients(below, metrics, unit)
    headed(figure, title)
    return picture(figure, "svg")


def compare_svg(runs: Mapping[str, Lines]) -> bytes:
    """The validation curves of several runs, by name."""
    return picture(_compared(runs), "svg")


def compare_png(runs: Mapping[str, Lines]) -> bytes:
    return picture(_compared(runs), "png")


def _compared(runs: Mapping[str, Lines]) -> Figure:
    """Over epochs where every run has at least one behind it, over tokens otherwise."""
    figure, (ax,) = sheets(7.6, 4.4, (1,))
    unit = "tokens" if any(lines and _unit(lines) == "tokens" for lines in runs.values()) else "epoch"
    heights: list[float] = []
    names: list[tuple[float, str, str]] = []
    begins: list[tuple[float, float, str]] = []
    for index, (name, lines) in enumerate(runs.items()):
        points = _points(lines, "validation", unit)
        if not points:
            continue
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
        mark = "o" if len(points) <= SINGLE else ""
        across, up = zip(*points, strict=True)
        ax.plot(across, up, color=colour, linestyle=dash, linewidth=1.5, marker=mark, markersize=3)
        place, best = min(points, key=lambda one: one[1])
        heights += up
        names.append((best, f"{drawable(name)[:LONGEST]}  {_short(best)}", colour))
        begins.append((place, best, colour))
    dressed(ax, "", "validation perplexity")
    _along(ax, unit)
    perplexities(ax, heights or [1.0, 10.0])
    left, right = ax.get_xlim()
    for place, best, colour in begins:  # from the best of each to its name
        ax.plot((place, right), (best, best), color=colour, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    ax.set_xlim(left, right)
    _name_at_the_right(ax, names)
    return figure


def _draw_gradients(ax: Axes, metrics: Lines, unit: str) -> None:
    """The norm of the gradient, and the learning rate against an axis of its own."""
    norms, rates = _points(metrics, "train", unit, "gradient_norm"), _points(metrics, "train", unit, "rate")
    dressed(ax, "", "gradient norm")
    _along(ax, unit)
    if not norms:
        return
    ax.plot(*zip(*_fewer(norms), strict=True), color=INK, linewidth=0.9)
    ax.set_ylim(0, 1.1 * max(height for _, height in norms) or 1)
    ax.locator_params(axis="y", nbins=3)
    if rates:
        other = ax.twinx()
        other.plot(*zip(*_fewer(rates), strict=True), color=GREY, linewidth=0.9, linestyle=(0, (5, 2)))
        dressed(other, "", "learning rate")
        other.spines["right"].set_visible(True)
        other.spines["right"].set_color(PALE)
        other.tick_params(labelcolor=GREY, color=PALE)
        other.yaxis.label.set_color(GREY)
        other.set_ylim(0, 1.1 * max(height for _, height in rates) or 1)
        other.locator_params(axis="y", nbins=3)


def _along(ax: Axes, unit: str) -> None:
    """The horizontal axis: epochs, or tokens in thousands and millions."""
    from matplotlib.ticker import EngFormatter

    ax.set_xlabel({"epoch": "epochs", "tokens": "tokens"}[unit])
    if unit == "tokens":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _unit(metrics: Lines) -> str:
    """Whether there is an epoch to count in."""
    return "epoch" if max((line["epoch"] for line in metrics), default=0) >= 1 else "tokens"


def _points(metrics: Lines, kind: str, unit: str, value: str = "perplexity") -> list[tuple[float, float]]:
    """What a plot can show of one kind of line."""
    found = [(float(line[unit]), line.get(value)) for line in metrics if line["kind"] == kind]
    return [(place, height) for place, height in found if isinstance(height, (int, float)) and 0 < height < math.inf]


def _fewer(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, or means over neighbours where there are many: places as they are, heights by their logarithm."""
    size = math.ceil(len(points) / MOST)
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), math.exp(sum(math.log(y) for _, y in group) / len(group)))
        for group in groups
    ]


def _name_at_the_right(ax: Axes, names: Sequence[tuple[float, str, str]]) -> None:
    """Words beside the right end of the axes at the heights they belong to, moved apart where they would meet."""
    low, high = map(math.log, ax.get_ylim())
    ordered = sorted(names)
    places = [(math.log(height) - low) / (high - low) for height, _, _ in ordered]
    for (height, words, colour), place in zip(ordered, _apart(places), strict=True):
        ax.annotate(
            words,
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(1.02, place),
            textcoords="axes fraction",
            va="center",
            color=colour,
            **WORDS,
        )


def _apart(places: Sequence[float]) -> list[float]:
    """Rising places with the least distance between them: groups that would meet spread round their middle."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _first(groups[-1]) - _last(groups[-2]) < APART:
            groups[-2:] = [[*groups[-2], *groups[-1]]]
    return [_first(group) + APART * index for group in groups for index in range(len(group))]


def _first(group: Sequence[float]) -> float:
    return sum(group) / len(group) - APART * (len(group) - 1) / 2


def _last(group: Sequence[float]) -> float:
    return _first(group) + APART * (len(group) - 1)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
