"""Where labels stand: beside their line, on a piece that is theirs alone, clear of everything else.

Knows a layout; tries a few places for each label and takes the best. Lines of one kind have their labels at one place
in every column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal

from leporello.draw.layout import GRADIENT, MARGIN, Layout, Routed
from leporello.draw.measure import SIZE, names_width
from leporello.draw.route import Point, beside, length, pieces
from leporello.draw.sizes import SQUARE

Box = tuple[float, float, float, float]  # left, top, right, bottom
Anchor = Literal["start", "middle", "end"]
Candidate = tuple[float, Point, Anchor]  # what speaks against it, and where it is
CLEAR = 3.0  # between a label and its line
TRIED = 5  # columns in which a place is tried
APART = 6.0  # between two labels side by side
ARROWHEAD = 10.0
SHARES = (0.5, 0.35, 0.65, 0.2, 0.8)  # where along a piece of a line a label may stand
SLANTED = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9)  # a fan has few free places


@dataclass(frozen=True)
class Label:
    """The middle of a label's text, and its size.

    anchor   which end of the text holds to its line, however wide a font makes it
    """

    routed: Routed
    x: float
    y: float
    width: float
    anchor: Anchor = "middle"

    @property
    def held(self) -> float:
        """x of the anchor."""
        return self.x + self.width * {"start": -0.5, "middle": 0.0, "end": 0.5}[self.anchor]

    @property
    def box(self) -> Box:
        return _around(self.x, self.y, self.width)


def _around(x: float, y: float, width: float) -> Box:
    return (x - width / 2, y - SIZE / 2, x + width / 2, y + SIZE / 2)


def labels(layout: Layout) -> list[Label]:
    """A place for the label of every line that has one."""
    found: list[Label] = []
    things = _Things(layout)
    for alike in _alike(layout):
        width = names_width(alike[0].line.names)
        dx, dy, anchor = _best(alike, width, things, found)
        for routed in alike:
            target = layout.placed[routed.line.target]
            found.append(Label(routed, target.x + dx, target.y + dy, width, anchor))
    return found


def _alike(layout: Layout) -> list[list[Routed]]:
    """Lines with labels, those together that say the same and run the same way in their columns."""
    groups: dict[tuple[str, str, str, tuple[int, ...]], list[Routed]] = {}
    for routed in layout.routed:
        if routed.line.names and routed.line.kind == "forward":
            source, target = layout.placed[routed.line.source], layout.placed[routed.line.target]
            shape = tuple(round(value) for point in routed.way for value in (point[0] - target.x, point[1] - target.y))
            key = (source.spot.place, target.spot.place, routed.line.label, shape)
            groups.setdefault(key, []).append(routed)
    return list(groups.values())


def extent(layout: Layout, placed: Iterable[Label]) -> Box:
    """The page that holds the layout and its labels."""
    boxes = [label.box for label in placed]
    return (
        min([0.0, *(box[0] - MARGIN / 2 for box in boxes)]),
        min([0.0, *(box[1] - MARGIN / 2 for box in boxes)]),
        max([layout.width, *(box[2] + MARGIN / 2 for box in boxes)]),
        max([layout.height, *(box[3] + MARGIN / 2 for box in boxes)]),
    )


class _Things:
    """What a label must not touch, by the column it is in."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.spots = [
            (p.x - p.half.across, p.y - p.half.along, p.x + p.half.across, p.y + p.half.along)
            for p in layout.placed.values()
        ]
        self.spots += [
            (x - SQUARE / 2 - 1, y - SQUARE / 2 - 1, x + SQUARE / 2 + 1, y + SQUARE / 2 + 1)
            for routed in layout.routed
            for x, y in routed.squares
        ]
        self.pieces = [(routed, piece) for routed in layout.routed for piece in pieces(routed.way)]
        self.borders = [((x, 0.0), (x, layout.height)) for x in layout.borders]

    def near(self, box: Box) -> tuple[list[Box], list[tuple[Point, Point]]]:
        low, high = box[0] - 5, box[2] + 5
        spots = [spot for spot in self.spots if spot[0] < high and low < spot[2]]
        crossing = [
            piece
            for _, piece in self.pieces
            if min(piece[0][0], piece[1][0]) < high and low < max(piece[0][0], piece[1][0])
        ]
        return spots, crossing


def _best(alike: list[Routed], width: float, things: _Things, placed: list[Label]) -> tuple[float, float, Anchor]:
    """The place with the least against it in any column, as seen from the target."""
    tried = alike if len(alike) <= TRIED else [*alike[: TRIED - 1], alike[-1]]
    middle = tried[len(tried) // 2]
    targets = [things.layout.placed[routed.line.target] for routed in tried]
    own = things.layout.placed[middle.line.target]

    def against(candidate: Candidate) -> float:
        cost, (x, y), _ = candidate
        points = [(x - own.x + target.x, y - own.y + target.y) for target in targets]
        return cost + max(_touching(point, width, things, placed) for point in points)

    _, (x, y), anchor = min(_candidates(middle, width, things), key=against)
    return x - own.x, y - own.y, anchor


def _candidates(routed: Routed, width: float, things: _Things) -> list[Candidate]:
    """Places beside the pieces of a line, with what speaks against each: short pieces, ends, the other side."""
    found: list[Candidate] = []
    own = pieces(routed.way)
    for index, (a, b) in enumerate(own):
        steep = abs(a[0] - b[0]) < 0.01
        alone = not _shared(routed, (a, b), things)
        usable = max(0.0, length((a, b)) - (ARROWHEAD if index == len(own) - 1 else 0))
        need = width if abs(a[1] - b[1]) < 0.01 else SIZE  # room along the piece
        aside = width / 2 + 1 if steep else SIZE / 2 - 1
        for share in SLANTED if routed.slanted else SHARES:
            at = share * usable / max(length((a, b)), 1e-6)
            spot = (a[0] + (b[0] - a[0]) * at, a[1] + (b[1] - a[1]) * at)
            for side, away in product((-1, 1), (0.0, GRADIENT + 2)):
                point = beside([spot, b], side * (aside + CLEAR + away))[0]
                cost = away + 4 * abs(share - 0.5) + 0.5 * (len(own) - 1 - index)
                cost += (0 if side < 0 else 3) + (0 if alone else 60) + max(0.0, need - usable) * 0.8
                anchor: Anchor = "middle" if not steep else "end" if point[0] < spot[0] else "start"
                found.append((cost, point, anchor))
    return found


def _shared(routed: Routed, piece: tuple[Point, Point], things: _Things) -> bool:
    """Whether another line of the same source runs here too."""
    (x1, y1), (x2, y2) = piece
    for other, (a, b) in things.pieces:
        if other is routed or other.line.source != routed.line.source or other.line.kind != "forward":
            continue
        flat = abs(y1 - y2) < 0.01 and abs(a[1] - b[1]) < 0.01 and abs(y1 - a[1]) < 1
        steep = abs(x1 - x2) < 0.01 and abs(a[0] - b[0]) < 0.01 and abs(x1 - a[0]) < 1
        if flat and min(x1, x2) < max(a[0], b[0]) - 1 and min(a[0], b[0]) + 1 < max(x1, x2):
            return True
        if steep and min(y1, y2) < max(a[1], b[1]) - 1 and min(a[1], b[1]) + 1 < max(y1, y2):
            return True
    return False


def _touching(point: Point, width: float, things: _Things, placed: list[Label]) -> float:
    box = _around(*point, width)
    spots, crossing = things.near(box)
    cost = 100.0 * sum(_overlap(box, spot) > 0 for spot in spots)
    wide = (box[0] - APART, box[1], box[2] + APART, box[3])
    cost += 100.0 * sum(_overlap(wide, label.box) > 0 for label in placed)
    cost += 25.0 * sum(_meets(box, piece) for piece in [*crossing, *things.borders])
    outside = box[0] < 0 or box[2] > things.layout.width
    return cost + 2.0 * outside


def _meets(box: Box, piece: tuple[Point, Point]) -> bool:
    """Whether a piece of a line passes through a box."""
    (x1, y1), (x2, y2) = piece
    if abs(x1 - x2) < 0.01 or abs(y1 - y2) < 0.01:
        thin = (min(x1, x2) - 1, min(y1, y2) - 1, max(x1, x2) + 1, max(y1, y2) + 1)
        return _overlap(box, thin) > 0
    steps = int(abs(x1 - x2) + abs(y1 - y2)) // 4 + 1
    return any(
        box[0] < x1 + (x2 - x1) * at / steps < box[2] and box[1] < y1 + (y2 - y1) * at / steps < box[3]
        for at in range(steps + 1)
    )


def _overlap(one: Box, other: Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    along = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, across) * max(0.0, along)
