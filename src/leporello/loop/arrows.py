"""The gradient's arrows on a strip: against the others, from what is asked for back to all that it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leporello.draw.picture import Line, Picture
from leporello.loop.diagram import Diagram
from leporello.loop.strip import Strip, Writer


def with_gradient(picture: Picture, diagram: Diagram, strip: Strip, crossing: Sequence[float]) -> Picture:
    """Add the gradient's arrows, against the others: from what is asked for back to all that it depends on.

    crossing   for each step the weight of what it passes back to the step before; 0 cuts the arrow. What runs
               backwards in time counts its steps from the end
    """
    writer = Writer(diagram, strip)
    roles = {vertex.key: vertex.role for vertex in diagram.vertices}
    place = {spot.id: spot for spot in picture.spots}
    follow = _reached(picture)
    weights = {False: _ahead(writer, crossing), True: _back(writer, crossing)}
    added, followed = [], []
    for line in picture.lines:
        source, target = place[line.source], place[line.target]
        if roles[source.place] in ("input", "target") or line.target not in follow:
            continue
        ends = sorted((source.column, target.column))
        passed = weights[source.column > target.column]
        cut = any(passed[index] == 0 for index in range(ends[0] + 1, ends[1] + 1))
        added.append(Line(line.target, line.source, kind="cut" if cut else "gradient"))
        followed += [] if cut else [ends]
    ways = {diagram.is_reverse(edge) for edge in diagram.edges if edge.delay}
    borders = {index for way in ways for index, weight in weights[way].items() if not weight}
    free = {index for index in borders if not any(first < index <= last for first, last in followed)}
    return replace(picture, lines=(*picture.lines, *added), borders=tuple(sorted(free)))


def _ahead(writer: Writer, crossing: Sequence[float]) -> dict[int, float]:
    """By column the weight in front of it; 1 where no step is drawn."""
    steps = {index: column.step for index, column in enumerate(writer.columns) if index > 0}
    return {index: 1.0 if step is None else crossing[step - 1] for index, step in steps.items()}


def _back(writer: Writer, crossing: Sequence[float]) -> dict[int, float]:
    """The same where time runs backwards: steps count from the end, and a step passes on to the column behind it."""
    steps = {index + 1: column.step for index, column in enumerate(writer.columns[:-1])}
    return {index: 1.0 if step is None else crossing[-step] for index, step in steps.items()}


def _reached(picture: Picture) -> set[str]:
    """Spots that the loss, or what comes after, depends on; without a loss all of them."""
    losses = [spot.id for spot in picture.spots if spot.place == "output.L"]
    if not losses:
        return {spot.id for spot in picture.spots}
    before: dict[str, list[str]] = {}
    for line in picture.lines:
        before.setdefault(line.target, []).append(line.source)
    dashed = {spot.id for spot in picture.spots if spot.dashed}
    ends = [line.target for line in picture.lines if line.target in dashed]
    found, waiting = set(), [*losses, *ends]
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += before.get(here, ())
    return found
