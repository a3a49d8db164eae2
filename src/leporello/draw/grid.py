"""From a layout's fine coordinates to the columns and rows of a terminal: the same order, as close together as can be.

Knows positions and least distances only.
"""

from __future__ import annotations

from bisect import bisect_left

NEAR = 1.5  # positions closer than that are one


class Axis:
    """Positions along one axis, and the cells they get.

    add     a position
    apart   a least distance in cells between two positions
    hold    a position that belongs near a later one
    """

    def __init__(self) -> None:
        self.positions: list[float] = []
        self.rules: dict[tuple[float, float], int] = {}
        self.held: set[float] = set()
        self.cells: list[int] = []

    def add(self, *positions: float) -> None:
        self.positions += positions

    def apart(self, one: float, other: float, cells: int) -> None:
        key = (min(one, other), max(one, other))
        self.rules[key] = max(cells, self.rules.get(key, 0))

    def hold(self, position: float) -> None:
        self.held.add(position)

    def merge(self) -> None:
        """Make one of positions that lie close together."""
        kept: list[float] = []
        for position in sorted(self.positions):
            if not kept or position - kept[-1] > NEAR:
                kept.append(position)
        self.positions = kept

    def near(self, position: float, distance: float) -> list[float]:
        """The positions not further away than that, and one on either side of them."""
        first, last = bisect_left(self.positions, position - distance), bisect_left(self.positions, position + distance)
        return self.positions[max(0, first - 1) : last + 1]

    def solve(self) -> None:
        """Give every position a cell, from the first on, as small as the rules allow."""
        rules: dict[int, list[tuple[int, int]]] = {}
        for (low, high), cells in self.rules.items():
            first, last = self._index(low), self._index(high)
            if first != last:
                rules.setdefault(last, []).append((first, cells))
        self.cells = []
        for index in range(len(self.positions)):
            after = self.cells[-1] + 1 if self.cells else 0
            self.cells.append(max([after, *(self.cells[first] + cells for first, cells in rules.get(index, ()))]))
        self._pull(rules)

    def _pull(self, rules: dict[int, list[tuple[int, int]]]) -> None:
        """Move what is held as far on as the rules allow."""
        limits: dict[int, list[tuple[int, int]]] = {}
        for last, found in rules.items():
            for first, cells in found:
                limits.setdefault(first, []).append((last, cells))
        held = {self._index(position) for position in self.held}
        for index in range(len(self.cells) - 2, -1, -1):
            if index in held:
                free = [self.cells[last] - cells for last, cells in limits.get(index, ())]
                self.cells[index] = min([self.cells[index + 1] - 1, *free])

    def _index(self, position: float) -> int:
        after = bisect_left(self.positions, position)
        around = [index for index in (after - 1, after) if 0 <= index < len(self.positions)]
        return min(around, key=lambda index: abs(self.positions[index] - position))

    def limit(self, position: float, low: int, high: int) -> None:
        """Keep a position's cell within bounds."""
        index = self._index(position)
        self.cells[index] = min(max(self.cells[index], low), high)

    def cell(self, position: float) -> int:
        return self.cells[self._index(position)]
