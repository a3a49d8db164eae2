"""What is wrong with a layout: things that lie on each other, or outside the page."""

from __future__ import annotations

from itertools import combinations

from leporello.draw.caption_placement import place_captions
from leporello.draw.label_placement import page_box, place_labels
from leporello.draw.picture_layout import PictureLayout, PlacedSpot, RoutedLine
from leporello.draw.polylines import Point, segments

Box = tuple[float, float, float, float]


def faults(layout: PictureLayout) -> list[str]:
    """Every fault in words; none in a good layout."""
    return [
        *_spots(layout),
        *_lines_through_spots(layout),
        *_lines_on_lines(layout),
        *_labels(layout),
        *_captions(layout),
        *_outside(layout),
    ]


def _captions(layout: PictureLayout) -> list[str]:
    labels = place_labels(layout)
    captions = place_captions(layout, labels)
    found = []
    for number, caption in enumerate(captions):
        left, top, right, bottom = caption.box
        core = (left + 1, top + 2, right - 1, bottom - 2)
        others = [*labels, *captions[number + 1 :]]
        found += [f"caption {caption.words} lies on a text" for other in others if _meet(core, other.box)]
        found += [
            f"caption {caption.words} lies on {spot.spot.id}"
            for spot in layout.placed.values()
            if _meet(core, _box(spot))
        ]
        for routed in layout.routed:
            if any(_crosses(segment, core) for segment in segments(routed.path)):
                found.append(f"{_name(routed)} passes through caption {caption.words}")
    return found


def _box(placed: PlacedSpot, margin: float = 0.0) -> Box:
    dx, dy = placed.half.x + margin, placed.half.y + margin
    return (placed.x - dx, placed.y - dy, placed.x + dx, placed.y + dy)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _spots(layout: PictureLayout) -> list[str]:
    return [
        f"{a.spot.id} lies on {b.spot.id}"
        for a, b in combinations(layout.placed.values(), 2)
        if _meet(_box(a, 2), _box(b, 2))
    ]


def _thin(segment: tuple[Point, Point], margin: float = 0.5) -> Box:
    (x1, y1), (x2, y2) = segment
    return (min(x1, x2) - margin, min(y1, y2) - margin, max(x1, x2) + margin, max(y1, y2) + margin)


def _is_slanted(segment: tuple[Point, Point]) -> bool:
    return abs(segment[0][0] - segment[1][0]) > 0.01 and abs(segment[0][1] - segment[1][1]) > 0.01


def _crosses(segment: tuple[Point, Point], box: Box) -> bool:
    (x1, y1), (x2, y2) = segment
    if not _is_slanted(segment):
        return _meet(_thin(segment), box)
    points = [(x1 + (x2 - x1) * at / 60, y1 + (y2 - y1) * at / 60) for at in range(61)]
    return any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)


def _lines_through_spots(layout: PictureLayout) -> list[str]:
    found = []
    for routed in layout.routed:
        for placed in layout.placed.values():
            if placed.spot.id in (routed.line.source, routed.line.target):
                continue
            if any(_crosses(segment, _box(placed, -3)) for segment in segments(routed.path)):
                found.append(f"{_name(routed)} passes through {placed.spot.id}")
    return found


def _name(routed: RoutedLine) -> str:
    return f"{routed.line.source} -> {routed.line.target} ({routed.line.kind})"


def _lines_on_lines(layout: PictureLayout) -> list[str]:
    """Parallel segments of lines that have neither source nor kind in common."""
    found = []
    flat = [(routed, segment) for routed in layout.routed for segment in segments(routed.points) if not routed.slanted]
    for (one, a), (other, b) in combinations(flat, 2):
        same = (one.line.source, one.line.kind) == (other.line.source, other.line.kind)
        if one is other or same or (one.line.kind != "forward" and other.line.kind != "forward"):
            continue  # gradients come together where their arrows parted
        level = _level(a) and _level(b) and abs(a[0][1] - b[0][1]) < 2.5
        steep = not _level(a) and not _level(b) and abs(a[0][0] - b[0][0]) < 2.5
        axis = 0 if level else 1
        if (level or steep) and _shared(a, b, axis) > 4:
            found.append(f"{_name(one)} runs on {_name(other)} for {_shared(a, b, axis):.0f}")
    return found


def _level(segment: tuple[Point, Point]) -> bool:
    return abs(segment[0][1] - segment[1][1]) < 0.01


def _shared(a: tuple[Point, Point], b: tuple[Point, Point], axis: int) -> float:
    low = max(min(a[0][axis], a[1][axis]), min(b[0][axis], b[1][axis]))
    high = min(max(a[0][axis], a[1][axis]), max(b[0][axis], b[1][axis]))
    return high - low


def _labels(layout: PictureLayout) -> list[str]:
    found = []
    placed = place_labels(layout)
    for one, other in combinations(placed, 2):
        if _meet(one.box, other.box):
            found.append(f"label {one.routed.line.label} lies on label {other.routed.line.label}")
    for label in placed:
        left, top, right, bottom = label.box
        core = (left + 1, top + 2, right - 1, bottom - 2)
        for spot in layout.placed.values():
            if _meet(core, _box(spot, -1)):
                found.append(f"label {label.routed.line.label} lies on {spot.spot.id}")
        for routed in layout.routed:
            if any(_crosses(segment, core) for segment in segments(routed.path)):
                found.append(f"{_name(routed)} passes through label {label.routed.line.label}")
    return found


def _outside(layout: PictureLayout) -> list[str]:
    boxes = [(placed.spot.id, _box(placed)) for placed in layout.placed.values()]
    boxes += [(label.routed.line.label, label.box) for label in place_labels(layout)]
    boxes += [(_name(routed), _thin(segment)) for routed in layout.routed for segment in segments(routed.path)]
    left, top, right, bottom = page_box(layout, place_labels(layout))
    return [
        f"{name} lies outside the page"
        for name, box in boxes
        if box[0] < left or box[1] < top or box[2] > right or box[3] > bottom
    ]


def crossings(layout: PictureLayout) -> int:
    """How often lines of different sources cross."""
    flat = [(routed, segment) for routed in layout.routed for segment in segments(routed.points)]
    count = 0
    for (one, a), (other, b) in combinations(flat, 2):
        if one.line.source != other.line.source and _level(a) != _level(b):
            level, steep = (a, b) if _level(a) else (b, a)
            x, y = steep[0][0], level[0][1]
            between = min(level[0][0], level[1][0]) + 1 < x < max(level[0][0], level[1][0]) - 1
            count += between and min(steep[0][1], steep[1][1]) + 1 < y < max(steep[0][1], steep[1][1]) - 1
    return count
