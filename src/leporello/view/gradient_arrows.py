"""The arrows that a gradient follows back through a strip: from the loss, or all outputs, against the others.

Where a gradient method truncates, an arrow is cut, and a border is drawn where no arrow crosses; where it weighs what
crosses, the arrow carries its factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from leporello.draw.picture import Line, Name, Picture
from leporello.view.diagram import Diagram
from leporello.view.strip import LOSS, TOTAL, Strip, StripWriter


def with_gradient(picture: Picture, diagram: Diagram, strip: Strip, crossing: Sequence[float]) -> Picture:
    """Add the gradient's arrows, against the others: from the loss, or all outputs, back to what they depend on.

    crossing   for each step the weight of what it passes back to the step before; 0 cuts the arrow. What runs
               backwards in time counts its steps from the end
    """
    writer = StripWriter(diagram, strip)
    roles = {vertex.key: vertex.role for vertex in diagram.vertices}
    place = {spot.id: spot for spot in picture.spots}
    relevant = _spots_with_gradient(picture)
    weights = {False: _weights_ahead(writer, crossing), True: _weights_back(writer, crossing)}
    added, followed = [], []
    for line in picture.lines:
        source, target = place[line.source], place[line.target]
        if source.rail or target.rail:  # no window is between a step and what all steps share
            added += [Line(line.target, line.source, kind="gradient")] if line.target in relevant else []
            continue
        if roles[source.place] in ("input", "target") or line.target not in relevant:
            continue
        ends = sorted((source.column, target.column))
        passed = weights[source.column > target.column]
        cut = any(passed[index] == 0 for index in range(ends[0] + 1, ends[1] + 1))
        factor = math.prod(passed[index] for index in range(ends[0] + 1, ends[1] + 1))
        names = () if factor in (0, 1) else (Name(f"ξ={factor:.3g}"),)
        added.append(Line(line.target, line.source, names, kind="cut" if cut else "gradient"))
        followed += [] if cut else [ends]
    ways = {diagram.is_reverse(edge) for edge in diagram.edges if edge.delay}
    borders = {index for way in ways for index, weight in weights[way].items() if not weight}
    free = {index for index in borders if not any(first < index <= last for first, last in followed)}
    return replace(picture, lines=(*picture.lines, *added), borders=tuple(sorted(free)))


def _weights_ahead(writer: StripWriter, crossing: Sequence[float]) -> dict[int, float]:
    """For each column the weight of the gradient that crosses its left border; 1 where no step is drawn."""
    steps = {index: column.step for index, column in enumerate(writer.columns) if index > 0}
    return {index: 1.0 if step is None else crossing[step - 1] for index, step in steps.items()}


def _weights_back(writer: StripWriter, crossing: Sequence[float]) -> dict[int, float]:
    """The same where time runs backwards: steps count from the end, and the gradient crosses to the right."""
    steps = {index + 1: column.step for index, column in enumerate(writer.columns[:-1])}
    return {index: 1.0 if step is None else crossing[-step] for index, step in steps.items()}


def _spots_with_gradient(picture: Picture) -> set[str]:
    """Ids of the spots that the loss, or what comes after, depends on; without a loss all of them."""
    losses = [spot.id for spot in picture.spots if spot.place in (LOSS, TOTAL)]
    if not losses:
        return {spot.id for spot in picture.spots}
    before: dict[str, list[str]] = {}
    for line in picture.lines:
        before.setdefault(line.target, []).append(line.source)
    dashed = {spot.id for spot in picture.spots if spot.dashed}
    ends = [line.target for line in picture.lines if line.target in dashed]
    reached, pending = set(), [*losses, *ends]
    while pending:
        id = pending.pop()
        if id not in reached:
            reached.add(id)
            pending += before.get(id, ())
    return reached
