"""The gradient's arrows on a strip: against the others, from what is asked for back to all that it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leporello.draw.picture import Line, Picture
from leporello.loop.diagram import Diagram
from leporello.loop.strip import Strip, Writer


def with_gradient(picture: Picture, diagram: Diagram, strip: Strip, crossing: Sequence[float]) -> Picture:
    """Add the gradient's arrows, against the others: from what is asked for back to all that it depends on.

    crossing   for each step the weight of what it passes back to the step before; 0 cuts the arrow
    """
    writer = Writer(diagram, strip)
    roles = {vertex.key: vertex.role for vertex in diagram.vertices}
    place = {spot.id: spot for spot in picture.spots}
    follow = _reached(picture)
    added = []
    for line in picture.lines:
        source, target = place[line.source], place[line.target]
        if roles[source.place] in ("input", "target") or line.target not in follow:
            continue
        cut = source.column != target.column and _is_cut(writer, source.column, target.column, crossing)
        added.append(Line(line.target, line.source, kind="cut" if cut else "gradient"))
    borders = tuple(
        index
        for index, column in enumerate(writer.columns)
        if column.step is not None and not crossing[column.step - 1] and index > 0
    )
    return replace(picture, lines=(*picture.lines, *added), borders=borders)


def _is_cut(writer: Writer, source: int, target: int, crossing: Sequence[float]) -> bool:
    """Whether the gradient of an arrow meets a weight of zero on its way back from the step that reads."""
    steps = [writer.columns[index].step for index in range(target, source, 1 if source > target else -1)]
    return any(step is not None and not crossing[step - 1] for step in steps)


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
