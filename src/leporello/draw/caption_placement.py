"""Placement of captions, the words beside spots: straight below or above, else beside the lines that leave there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leporello.draw.label_placement import Box, Boxed, Label, Obstacles, label_box, obstacle_cost
from leporello.draw.picture_layout import GRADIENT_OFFSET, PictureLayout, PlacedSpot
from leporello.draw.polylines import Point
from leporello.draw.sizes import CAPTION_FONT_SIZE, text_width


@dataclass(frozen=True)
class Caption:
    """The word beside a spot: the centre and the width of its text."""

    words: str
    x: float
    y: float
    width: float

    @property
    def box(self) -> Box:
        return label_box(self.x, self.y, (self.width, CAPTION_FONT_SIZE))


def place_captions(layout: PictureLayout, labels: Sequence[Label]) -> list[Caption]:
    """The captions of all spots: those of one place have the same position in all columns."""
    obstacles = Obstacles(layout)
    groups: dict[str, list[PlacedSpot]] = {}
    for one in layout.placed.values():
        if one.spot.caption:
            groups.setdefault(one.spot.place, []).append(one)
    captions: list[Caption] = []
    for spots in groups.values():
        width = max(text_width(one.spot.caption, CAPTION_FONT_SIZE) for one in spots)
        dx, dy = _best_offset(spots, width, obstacles, [*labels, *captions])
        captions += [Caption(one.spot.caption, one.x + dx, one.y + dy, width) for one in spots]
    return captions


def _best_offset(spots: list[PlacedSpot], width: float, obstacles: Obstacles, placed: Sequence[Boxed]) -> Point:
    """The first of the positions that touches the least, in all columns."""

    def cost(offset: Point) -> float:
        points = [(one.x + offset[0], one.y + offset[1]) for one in spots]
        return max(obstacle_cost(point, (width, CAPTION_FONT_SIZE), obstacles, placed) for point in points)

    return min(_offsets(spots[0], width), key=cost)


def _offsets(placed: PlacedSpot, width: float) -> list[Point]:
    """Positions of a caption from the centre of its spot, the best first."""
    up = placed.half.y + CAPTION_FONT_SIZE / 2 + 3
    beside = width / 2 + 9
    further = beside + GRADIENT_OFFSET + 3
    outside = placed.half.x + width / 2 + 3
    sides = (1, -1) if placed.spot.caption_below else (-1, 1)
    offsets = [(dx, side * up) for side in sides for dx in (0.0, beside, -beside, further, -further)]
    return [*offsets, (outside, sides[0] * placed.half.y), (-outside, sides[0] * placed.half.y)]
