"""Ways of lines as SVG paths: rounded corners, arrowheads, bars across what is cut."""

from __future__ import annotations

from itertools import pairwise

from leporello.draw.route import Point

CORNER = 10.0
HEAD = 7.0


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def path(points: list[Point]) -> str:
    """A way with rounded corners."""
    start = points[0]
    parts = [f"M{number(start[0])} {number(start[1])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        radius = min(CORNER, _distance(before, here) / 2, _distance(here, after) / 2)
        a, b = towards(here, before, radius), towards(here, after, radius)
        parts.append(
            f"L{number(a[0])} {number(a[1])}Q{number(here[0])} {number(here[1])} {number(b[0])} {number(b[1])}"
        )
    end = points[-1]
    return "".join(parts) + f"L{number(end[0])} {number(end[1])}"


def _distance(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def towards(start: Point, end: Point, distance: float) -> Point:
    whole = max(_distance(start, end), 1e-6)
    share = min(1.0, distance / whole)
    return (start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)


def head(points: list[Point], kind: str) -> str:
    """The arrow's tip."""
    (x, y), before = points[-1], points[-2]
    dx, dy = _unit(before, points[-1])
    back = (x - dx * HEAD, y - dy * HEAD)
    wing = HEAD * 0.45
    corners = [(x, y), (back[0] - dy * wing, back[1] + dx * wing), (back[0] + dy * wing, back[1] - dx * wing)]
    return f'<path class="head{kind}" d="M{"L".join(f"{number(a)} {number(b)}" for a, b in corners)}Z"/>'


def _unit(a: Point, b: Point) -> Point:
    dx, dy = b[0] - a[0], b[1] - a[1]
    size = max((dx * dx + dy * dy) ** 0.5, 1e-6)
    return dx / size, dy / size


def bars(points: list[Point]) -> str:
    """Two bars across a line that is not followed, in the middle of its longest piece."""
    a, b = max(pairwise(points), key=lambda piece: _distance(*piece))
    x, y = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
    dx, dy = _unit(a, b)
    bars = []
    for shift in (-2, 2):
        cx, cy = x + dx * shift, y + dy * shift
        bars.append(f"M{number(cx - dy * 5)} {number(cy + dx * 5)}L{number(cx + dy * 5)} {number(cy - dx * 5)}")
    return f'<path class="bars" d="{"".join(bars)}"/>'


def passes(points: list[Point], spot: Point) -> bool:
    """Whether a way goes straight on through a point, not turning there as well."""
    for a, b in pairwise(points):
        flat = abs(a[1] - b[1]) < 0.01 and abs(spot[1] - a[1]) < 0.5
        steep = abs(a[0] - b[0]) < 0.01 and abs(spot[0] - a[0]) < 0.5
        if flat and min(a[0], b[0]) + 1 < spot[0] < max(a[0], b[0]) - 1:
            return True
        if steep and min(a[1], b[1]) + 1 < spot[1] < max(a[1], b[1]) - 1:
            return True
    return False
