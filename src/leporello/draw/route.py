"""Ways of lines: points joined at right angles, and what can be done with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]


def simplified(points: Sequence[Point]) -> list[Point]:
    """Without points that stand on a straight piece, or twice."""
    kept: list[Point] = []
    for point in points:
        if kept and abs(kept[-1][0] - point[0]) < 0.01 and abs(kept[-1][1] - point[1]) < 0.01:
            continue
        while len(kept) > 1 and _straight(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _straight(a: Point, b: Point, c: Point) -> bool:
    return (abs(a[0] - b[0]) < 0.01 and abs(b[0] - c[0]) < 0.01) or (
        abs(a[1] - b[1]) < 0.01 and abs(b[1] - c[1]) < 0.01
    )


def beside(points: Sequence[Point], distance: float) -> list[Point]:
    """The same way, so far to the right of whoever walks along it."""
    normals = [_normal(a, b) for a, b in pairwise(points)]
    if len(normals) == 1:
        return [(x + distance * normals[0][0], y + distance * normals[0][1]) for x, y in points]
    moved: list[Point] = []
    for index, (x, y) in enumerate(points):
        around = normals[max(0, index - 1) : index + 1]
        across = next((normal[0] for normal in around if abs(normal[0]) > 0.5), 0.0)
        along = next((normal[1] for normal in around if abs(normal[1]) > 0.5), 0.0)
        moved.append((x + distance * across, y + distance * along))
    return moved


def _normal(a: Point, b: Point) -> Point:
    """To the right of the way from a to b, where y grows downwards."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    far = max((dx * dx + dy * dy) ** 0.5, 1e-6)
    return (-dy / far, dx / far)


def pieces(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    return list(pairwise(points))


def length(piece: tuple[Point, Point]) -> float:
    return abs(piece[1][0] - piece[0][0]) + abs(piece[1][1] - piece[0][1])
