"""Placement of labels: beside a segment that is theirs alone, clear of spots, lines and other labels.

For each label a number of positions is tried and the one of least cost taken. Lines that are alike in every column have
their labels at the same position in every column. A label that would touch something at every position is replaced by a
mark, a raised number; what it stands for is in a note below the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, Protocol

from leporello.draw.picture import Name, raised
from leporello.draw.picture_layout import GRADIENT_OFFSET, MARGIN, PictureLayout, RoutedLine
from leporello.draw.polylines import Point, Segment, distance, parallel, segments
from leporello.draw.sizes import FONT_SIZE, SQUARE, names_width

Box = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[float, float]  # width, height
Anchor = Literal["start", "middle", "end"]
Candidate = tuple[float, Point, Anchor]  # cost, centre, anchor
LINE_CLEARANCE = 3.0  # between a label and its line
MARK_HEIGHT = 8.0  # of a mark, a raised number
LABEL_SPACING = 6.0  # between two labels side by side
ARROWHEAD = 10.0  # length that a label leaves free at the tip of a line
COST_OF_CROSSING = 25.0  # of a label on a line; on a spot or another label it is more
MAX_COLUMNS_TRIED = 5  # columns in which a position is tried
SHARES = (0.5, 0.35, 0.65, 0.2, 0.8)  # positions along a segment, as shares of its length
MANY_SHARES = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9)  # of marks; in a fan


class Boxed(Protocol):
    """A text that has a place: a label, or the caption of a spot."""

    @property
    def box(self) -> Box: ...


@dataclass(frozen=True)
class Label:
    """The label of a line: the centre and the width of its text.

    anchor   the end of the text that keeps its distance to the line, however wide the reader's font is
    mark     what is written instead of the names of the line; nothing where they have room
    """

    routed: RoutedLine
    x: float
    y: float
    width: float
    anchor: Anchor = "middle"
    mark: str = ""

    @property
    def names(self) -> tuple[Name, ...]:
        return (Name(self.mark),) if self.mark else self.routed.line.names

    @property
    def anchor_x(self) -> float:
        """x of the anchored end, as SVG needs it."""
        return self.x + self.width * {"start": -0.5, "middle": 0.0, "end": 0.5}[self.anchor]

    @property
    def box(self) -> Box:
        return label_box(self.x, self.y, (self.width, MARK_HEIGHT if self.mark else FONT_SIZE))


def label_box(x: float, y: float, size: Size) -> Box:
    return (x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)


def place_labels(layout: PictureLayout, marks: Mapping[str, str] | None = None) -> list[Label]:
    """A label for every forward line that has names.

    marks   what stands for some labels already; a label gets the same mark everywhere
    """
    placed: list[Label] = []
    known = dict(marks or {})
    obstacles = Obstacles(layout)
    for alike in _group_alike(layout):
        names, mark = alike[0].line.names, ""
        position, touched = _best_position(alike, (names_width(names), FONT_SIZE), obstacles, placed)
        if touched:
            instead = known.get(alike[0].line.label, raised(len(known) + 1))
            size = (names_width((Name(instead),)), MARK_HEIGHT)
            of_mark, touched_by_mark = _best_position(alike, size, obstacles, placed)
            if touched_by_mark < touched:
                known[alike[0].line.label] = mark = instead
                position, names = of_mark, (Name(mark),)
        dx, dy, anchor = position
        for routed in alike:
            target = layout.placed[routed.line.target]
            placed.append(Label(routed, target.x + dx, target.y + dy, names_width(names), anchor, mark))
    return placed


def marks_of(labels: Iterable[Label]) -> dict[str, str]:
    """The marks of some labels, by what they stand for."""
    return {label.routed.line.label: label.mark for label in labels if label.mark}


def _group_alike(layout: PictureLayout) -> list[list[RoutedLine]]:
    """Lines with labels, grouped: those of one group have the same label and the same path relative to their target."""
    groups: dict[tuple[str, str, str, tuple[int, ...]], list[RoutedLine]] = {}
    for routed in layout.routed:
        if routed.line.names:
            source, target = layout.placed[routed.line.source], layout.placed[routed.line.target]
            shape = tuple(round(value) for point in routed.path for value in (point[0] - target.x, point[1] - target.y))
            key = (source.spot.place, target.spot.place, routed.line.label, shape)
            groups.setdefault(key, []).append(routed)
    return list(groups.values())


def page_box(layout: PictureLayout, placed: Iterable[Boxed]) -> Box:
    """The box that holds the layout, its labels and its captions."""
    boxes = [label.box for label in placed]
    return (
        min([0.0, *(box[0] - MARGIN / 2 for box in boxes)]),
        min([0.0, *(box[1] - MARGIN / 2 for box in boxes)]),
        max([layout.width, *(box[2] + MARGIN / 2 for box in boxes)]),
        max([layout.height, *(box[3] + MARGIN / 2 for box in boxes)]),
    )


class Obstacles:
    """What a label must not touch: spots, squares, segments of lines, borders of windows."""

    def __init__(self, layout: PictureLayout) -> None:
        self.layout = layout
        self.boxes = [(p.x - p.half.x, p.y - p.half.y, p.x + p.half.x, p.y + p.half.y) for p in layout.placed.values()]
        self.boxes += [
            (x - SQUARE / 2 - 1, y - SQUARE / 2 - 1, x + SQUARE / 2 + 1, y + SQUARE / 2 + 1)
            for routed in layout.routed
            for x, y in routed.squares
        ]
        self.segments = [(routed, segment) for routed in layout.routed for segment in segments(routed.path)]
        self.borders = [((x, 0.0), (x, layout.height)) for x in layout.borders]

    def near(self, box: Box) -> tuple[list[Box], list[Segment]]:
        """Boxes and segments in the range of x of a box."""
        low, high = box[0] - 5, box[2] + 5
        boxes = [one for one in self.boxes if one[0] < high and low < one[2]]
        nearby = [
            segment
            for _, segment in self.segments
            if min(segment[0][0], segment[1][0]) < high and low < max(segment[0][0], segment[1][0])
        ]
        return boxes, nearby

    def is_beyond_line(self, routed: RoutedLine, start: Point, point: Point) -> bool:
        """Whether another arrow passes between a point of a line and a label: it would read as that arrow's."""
        way = (min(start[0], point[0]), min(start[1], point[1]), max(start[0], point[0]), max(start[1], point[1]))
        wide = (way[0] - 0.1, way[1] - 0.1, way[2] + 0.1, way[3] + 0.1)
        others = [(other, segment) for other, segment in self.segments if other.line.kind == "forward"]
        return any(_crosses(wide, segment) for other, segment in others if other.line.source != routed.line.source)


def _best_position(
    alike: list[RoutedLine], size: Size, obstacles: Obstacles, placed: list[Label]
) -> tuple[tuple[float, float, Anchor], int]:
    """Offsets dx, dy of the label's centre from the target's, and the anchor, where the cost is least; what it touches.

    The second result is 0 where it touches nothing, and more the more it does.

    The cost of a position is the largest over the columns that are tried.

    alike   lines of one group of `_group_alike`
    size    width and height of the label
    """
    tried = alike if len(alike) <= MAX_COLUMNS_TRIED else [*alike[: MAX_COLUMNS_TRIED - 1], alike[-1]]
    middle = tried[len(tried) // 2]
    targets = [obstacles.layout.placed[routed.line.target] for routed in tried]
    origin = obstacles.layout.placed[middle.line.target]

    def cost_in_all_columns(candidate: Candidate) -> float:
        _, (x, y), _ = candidate
        points = [(x - origin.x + target.x, y - origin.y + target.y) for target in targets]
        return max(obstacle_cost(point, size, obstacles, placed) for point in points)

    costs = [(candidate, cost_in_all_columns(candidate)) for candidate in _candidates(middle, size, obstacles)]
    best, touched = min(costs, key=lambda pair: pair[0][0] + pair[1])
    _, (x, y), anchor = best
    return (x - origin.x, y - origin.y, anchor), int(touched // COST_OF_CROSSING)


def _candidates(routed: RoutedLine, size: Size, obstacles: Obstacles) -> list[Candidate]:
    """Positions beside the segments of a line, with a cost for short or shared segments, ends, the less usual side."""
    candidates: list[Candidate] = []
    own_segments = segments(routed.path)
    for index, (a, b) in enumerate(own_segments):
        vertical = abs(a[0] - b[0]) < 0.01
        shared = _is_shared(routed, (a, b), obstacles)
        usable = max(0.0, distance(a, b) - (ARROWHEAD if index == len(own_segments) - 1 else 0))
        need = size[0] if abs(a[1] - b[1]) < 0.01 else size[1]  # length that the label takes along the segment
        half = size[0] / 2 + 1 if vertical else size[1] / 2 - 1
        for share in MANY_SHARES if routed.slanted or size[1] == MARK_HEIGHT else SHARES:
            at = share * usable / max(distance(a, b), 1e-6)
            start = (a[0] + (b[0] - a[0]) * at, a[1] + (b[1] - a[1]) * at)
            for side, away in product((-1, 1), (0.0, GRADIENT_OFFSET + 2)):
                point = parallel([start, b], side * (half + LINE_CLEARANCE + away))[0]
                if away and obstacles.is_beyond_line(routed, start, point):
                    continue
                cost = away + 4 * abs(share - 0.5) + 0.5 * (len(own_segments) - 1 - index)
                cost += (0 if side < 0 else 3) + (60 if shared else 0) + max(0.0, need - usable) * 0.8
                anchor: Anchor = "middle" if not vertical else "end" if point[0] < start[0] else "start"
                candidates.append((cost, point, anchor))
    return candidates


def _is_shared(routed: RoutedLine, segment: Segment, obstacles: Obstacles) -> bool:
    """Whether another line of the same source runs along part of this segment."""
    (x1, y1), (x2, y2) = segment
    for other, (a, b) in obstacles.segments:
        if other is routed or other.line.source != routed.line.source or other.line.kind != "forward":
            continue
        horizontal = abs(y1 - y2) < 0.01 and abs(a[1] - b[1]) < 0.01 and abs(y1 - a[1]) < 1
        vertical = abs(x1 - x2) < 0.01 and abs(a[0] - b[0]) < 0.01 and abs(x1 - a[0]) < 1
        if horizontal and min(x1, x2) < max(a[0], b[0]) - 1 and min(a[0], b[0]) + 1 < max(x1, x2):
            return True
        if vertical and min(y1, y2) < max(a[1], b[1]) - 1 and min(a[1], b[1]) + 1 < max(y1, y2):
            return True
    return False


def obstacle_cost(point: Point, size: Size, obstacles: Obstacles, placed: Sequence[Boxed]) -> float:
    """The cost of a label at a point: what it covers, and whether it is off the page."""
    box = label_box(*point, size)
    boxes, nearby = obstacles.near(box)
    cost = 100.0 * sum(_overlap(box, one) > 0 for one in boxes)
    wide = (box[0] - LABEL_SPACING, box[1], box[2] + LABEL_SPACING, box[3])
    cost += 100.0 * sum(_overlap(wide, label.box) > 0 for label in placed)
    cost += COST_OF_CROSSING * sum(_crosses(box, segment) for segment in [*nearby, *obstacles.borders])
    outside = box[0] < 0 or box[2] > obstacles.layout.width
    return cost + 2.0 * outside


def _crosses(box: Box, segment: Segment) -> bool:
    """Whether a segment passes through a box; a slanted one is sampled every few units."""
    (x1, y1), (x2, y2) = segment
    if abs(x1 - x2) < 0.01 or abs(y1 - y2) < 0.01:
        thin = (min(x1, x2) - 1, min(y1, y2) - 1, max(x1, x2) + 1, max(y1, y2) + 1)
        return _overlap(box, thin) > 0
    samples = int(abs(x1 - x2) + abs(y1 - y2)) // 4 + 1
    return any(
        box[0] < x1 + (x2 - x1) * at / samples < box[2] and box[1] < y1 + (y2 - y1) * at / samples < box[3]
        for at in range(samples + 1)
    )


def _overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
