"""Polylines: the paths of lines, as points joined at right angles (a slanted path has two points)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]
Segment = tuple[Point, Point]


def simplified(points: Sequence[Point]) -> list[Point]:
    """The same polyline without repeated points and without points inside a straight stretch."""
    kept: list[Point] = []
    for point in points:
        if kept and abs(kept[-1][0] - point[0]) < 0.01 and abs(kept[-1][1] - point[1]) < 0.01:
            continue
        while len(kept) > 1 and _are_aligned(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _are_aligned(a: Point, b: Point, c: Point) -> bool:
    return (abs(a[0] - b[0]) < 0.01 and abs(b[0] - c[0]) < 0.01) or (
        abs(a[1] - b[1]) < 0.01 and abs(b[1] - c[1]) < 0.01
    )


def parallel(points: Sequence[Point], distance: float) -> list[Point]:
    """The polyline moved to its right-hand side by a distance (to the left for a negative one)."""
    normals = [_right_normal(a, b) for a, b in pairwise(points)]
    if len(normals) == 1:
        return [(x + distance * normals[0][0], y + distance * normals[0][1]) for x, y in points]
    moved: list[Point] = []
    for index, (x, y) in enumerate(points):
        adjacent = normals[max(0, index - 1) : index + 1]
        dx = next((normal[0] for normal in adjacent if abs(normal[0]) > 0.5), 0.0)
        dy = next((normal[1] for normal in adjacent if abs(normal[1]) > 0.5), 0.0)
        moved.append((x + distance * dx, y + distance * dy))
    return moved


def _right_normal(a: Point, b: Point) -> Point:
    """The unit vector to the right of the direction from a to b; y grows downwards."""
    dx, dy = direction(a, b)
    return (-dy, dx)


def direction(a: Point, b: Point) -> Point:
    """The unit vector from a to b."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = max((dx * dx + dy * dy) ** 0.5, 1e-6)
    return dx / length, dy / length


def segments(points: Sequence[Point]) -> list[Segment]:
    """The stretches between successive points."""
    return list(pairwise(points))


def distance(a: Point, b: Point) -> float:
    """The Manhattan distance, which is the length of a horizontal or vertical segment."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def point_towards(start: Point, end: Point, length: float) -> Point:
    """The point at a distance from the start on the way to the end, at most the end itself."""
    share = min(1.0, length / max(distance(start, end), 1e-6))
    return (start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)


def passes_through(points: Sequence[Point], point: Point) -> bool:
    """Whether a point is inside a segment of a polyline, away from its corners and ends."""
    for a, b in pairwise(points):
        horizontal = abs(a[1] - b[1]) < 0.01 and abs(point[1] - a[1]) < 0.5
        vertical = abs(a[0] - b[0]) < 0.01 and abs(point[0] - a[0]) < 0.5
        if horizontal and min(a[0], b[0]) + 1 < point[0] < max(a[0], b[0]) - 1:
            return True
        if vertical and min(a[1], b[1]) + 1 < point[1] < max(a[1], b[1]) - 1:
            return True
    return False
