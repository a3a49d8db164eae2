"""`Cells`: a layout on the columns and rows of a terminal, in the same order and as close together as can be.

Knows which cells each spot and each line takes; knows nothing of characters.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

from leporello.draw.grid import Axis
from leporello.draw.layout import Layout, Placed, Routed
from leporello.draw.measure import columns_of
from leporello.draw.route import pieces

Cell = tuple[int, int]  # column and row


def shown(placed: Placed) -> str:
    """A spot's name on one line."""
    return " ".join(str(placed.spot.name).split()) or " "


def tall(placed: Placed) -> int:
    """Rows above and below a spot's middle."""
    return 1 if placed.spot.shape == "circle" else 0


def _wide(placed: Placed) -> int:
    """Columns left and right of a spot's middle, within its border."""
    if placed.spot.shape == "point":
        return 0
    return columns_of(shown(placed)) // 2 + (placed.spot.shape == "circle")


class Cells:
    """Where everything of a layout stands, in cells.

    half   for each spot the columns left and right of its middle, within its border
    """

    def __init__(self, found: Layout) -> None:
        self.found = found
        self.half = {id: _wide(placed) for id, placed in found.placed.items()}
        self.from_above = {
            routed.line.target for routed in found.routed if routed.points[-2][1] < routed.points[-1][1] - 1
        }
        for _ in range(4):  # a box that is too narrow for its arrows is made wider
            self.across, self.along = self._solved()
            wider = self._too_narrow()
            if not wider:
                break
            self.half |= wider

    def _solved(self) -> tuple[Axis, Axis]:
        across, along = Axis(), Axis()
        for routed in self.found.routed:
            for a, b in pieces(routed.points):
                if abs(a[0] - b[0]) < 0.01:
                    across.add(a[0])
                else:
                    along.add(a[1])
            for x, y in routed.squares:
                across.add(x)
                along.add(y)
        for placed in self.found.placed.values():
            across.add(placed.x)
            along.add(placed.y)
        across.merge()
        along.merge()
        for placed in self.found.placed.values():
            self._keep_clear(placed, across, along)
        self._keep_apart(across, along)
        for routed in self.found.routed:
            self._leave_room(routed, across, along)
        across.solve()
        along.solve()
        self._keep_within(along)
        return across, along

    def _keep_clear(self, placed: Placed, across: Axis, along: Axis) -> None:
        """Nothing outside a spot comes nearer to it than its border and an arrowhead."""
        for x in across.near(placed.x, placed.half.across + 60):
            if abs(x - placed.x) > placed.half.across + 1:
                across.apart(x, placed.x, self.half[placed.spot.id] + 3)
            elif x < placed.x - 1:
                across.hold(x)
        for y in along.near(placed.y, placed.half.along + 60):
            if abs(y - placed.y) > placed.half.along + 1:
                arrow = y > placed.y or placed.spot.id in self.from_above
                along.apart(y, placed.y, tall(placed) + 1 + arrow)
            elif y < placed.y - 1:
                along.hold(y)

    def _keep_apart(self, across: Axis, along: Axis) -> None:
        """Spots of one row, and of one column, stand apart."""
        rows: dict[int, list[Placed]] = {}
        columns: dict[int, list[Placed]] = {}
        for placed in self.found.placed.values():
            rows.setdefault(round(placed.y), []).append(placed)
            columns.setdefault(round(placed.x), []).append(placed)
        for row in rows.values():
            for one, other in pairwise(sorted(row, key=lambda placed: placed.x)):
                across.apart(one.x, other.x, self.half[one.spot.id] + self.half[other.spot.id] + 3)
        for column in columns.values():
            for one, other in pairwise(sorted(column, key=lambda placed: placed.y)):
                along.apart(one.y, other.y, tall(one) + tall(other) + 2)

    def _leave_room(self, routed: Routed, across: Axis, along: Axis) -> None:
        """Room for arrowheads, squares and labels."""
        own = pieces(routed.points)
        source, target = self.found.placed[routed.line.source], self.found.placed[routed.line.target]
        room = columns_of(routed.line.label) + 2 if routed.line.label else 0
        (a, b) = own[-1]
        if abs(a[1] - b[1]) < 0.01:  # arrives from the side
            start = self.half[source.spot.id] + 1 if len(own) == 1 else 0
            begin = source.x if len(own) == 1 else a[0]
            across.apart(begin, target.x, start + room + 3 + self.half[target.spot.id])
        else:
            start = tall(source) + 1 if len(own) == 1 else 0
            begin = source.y if len(own) == 1 else a[1]
            along.apart(begin, target.y, start + 1 + bool(room) + tall(target) + (len(own) > 1))
        for x, y in routed.squares:
            across.apart(x, source.x, self.half[source.spot.id] + 3)
            for other in routed.points:
                if abs(other[0] - x) < 1 and abs(other[1] - y) > 1:
                    along.apart(other[1], y, 1)

    def _keep_within(self, along: Axis) -> None:
        """Lines that reach a spot from the side meet one of its rows."""
        for placed in self.found.placed.values():
            middle = along.cell(placed.y)
            for y in along.near(placed.y, placed.half.along):
                if 1.5 < abs(y - placed.y) <= placed.half.along:
                    along.limit(y, middle - tall(placed), middle + tall(placed))

    def _too_narrow(self) -> dict[str, int]:
        """Spots whose arrows from above or below would miss them, with the half width they need."""
        wider: dict[str, int] = {}
        for routed in self.found.routed:
            for id, point, beyond in (
                (routed.line.source, routed.points[0], routed.points[1]),
                (routed.line.target, routed.points[-1], routed.points[-2]),
            ):
                if abs(point[0] - beyond[0]) < 0.01:
                    need = abs(self.across.cell(point[0]) - self.across.cell(self.found.placed[id].x))
                    if need > self.half[id]:
                        wider[id] = max(need, wider.get(id, 0))
        return wider

    def at(self, point: tuple[float, float]) -> Cell:
        return self.across.cell(point[0]), self.along.cell(point[1])

    @cached_property
    def middles(self) -> dict[str, Cell]:
        return {id: self.at((placed.x, placed.y)) for id, placed in self.found.placed.items()}

    @cached_property
    def inside(self) -> set[Cell]:
        """Cells that spots take, borders included."""
        found = set()
        for id, placed in self.found.placed.items():
            x, y = self.middles[id]
            half = self.half[id] + (placed.spot.shape != "point")
            found |= {
                (column, row)
                for column in range(x - half, x + half + 1)
                for row in range(y - tall(placed), y + tall(placed) + 1)
            }
        return found

    @cached_property
    def ways(self) -> list[list[Cell]]:
        """For each line every cell on its way, from within the source to within the target."""
        return [self._way(routed) for routed in self.found.routed]

    def _way(self, routed: Routed) -> list[Cell]:
        corners = self._corners(routed)
        cells = [corners[0]]
        for (x1, y1), (x2, y2) in pairwise(corners):
            dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
            x, y = x1, y1
            while (x, y) != (x2, y2):
                x, y = (x + dx, y) if x != x2 else (x, y + dy)
                cells.append((x, y))
        return cells

    def _corners(self, routed: Routed) -> list[Cell]:
        """The turns of a line, and its ends in the rows or columns of the spots it joins."""
        source, target = self.middles[routed.line.source], self.middles[routed.line.target]
        corners: list[Cell] = []
        for index, (a, b) in enumerate(pieces(routed.points)):
            level = abs(a[1] - b[1]) < 0.01
            if index == 0:
                corners.append((source[0], self.along.cell(a[1])) if level else (self.across.cell(a[0]), source[1]))
            if index < len(routed.points) - 2:
                corners.append(self.at(b))
            else:
                corners.append((target[0], self.along.cell(b[1])) if level else (self.across.cell(b[0]), target[1]))
        return corners
