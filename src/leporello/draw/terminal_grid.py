"""A layout on the character grid of a terminal: the same order of columns and rows, as close together as possible.

Each axis collects the coordinates that matter and least distances between them, and gives each coordinate a position.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import pairwise

from leporello.draw.picture_layout import PictureLayout, PlacedSpot, RoutedLine
from leporello.draw.polylines import segments
from leporello.text_table import display_width

GridPoint = tuple[int, int]  # column and row
ROUND = ("circle", "card")  # shapes with a border around them; others are in brackets
MERGE_DISTANCE = 1.5  # coordinates closer than that become one


class GridAxis:
    """Coordinates of a layout along one axis, and the character positions they get.

    add     a coordinate
    apart   a least distance, in characters, between two coordinates
    hold    a coordinate that belongs close to the next one
    """

    def __init__(self) -> None:
        self.coordinates: list[float] = []
        self.rules: dict[tuple[float, float], int] = {}
        self.held: set[float] = set()
        self.positions: list[int] = []

    def add(self, *coordinates: float) -> None:
        self.coordinates += coordinates

    def apart(self, one: float, other: float, characters: int) -> None:
        key = (min(one, other), max(one, other))
        self.rules[key] = max(characters, self.rules.get(key, 0))

    def hold(self, coordinate: float) -> None:
        self.held.add(coordinate)

    def merge(self) -> None:
        """Merge coordinates that are close together."""
        kept: list[float] = []
        for coordinate in sorted(self.coordinates):
            if not kept or coordinate - kept[-1] > MERGE_DISTANCE:
                kept.append(coordinate)
        self.coordinates = kept

    def near(self, coordinate: float, distance: float) -> list[float]:
        """The coordinates within a distance, and one more on either side."""
        first = bisect_left(self.coordinates, coordinate - distance)
        last = bisect_left(self.coordinates, coordinate + distance)
        return self.coordinates[max(0, first - 1) : last + 1]

    def solve(self) -> None:
        """Give every coordinate a position, in increasing order, as small as the rules allow."""
        rules: dict[int, list[tuple[int, int]]] = {}
        for (low, high), characters in self.rules.items():
            first, last = self._index(low), self._index(high)
            if first != last:
                rules.setdefault(last, []).append((first, characters))
        self.positions = []
        for index in range(len(self.coordinates)):
            lowest = [self.positions[-1] + 1 if self.positions else 0]
            lowest += [self.positions[first] + characters for first, characters in rules.get(index, ())]
            self.positions.append(max(lowest))
        self._pull_held(rules)

    def _pull_held(self, rules: dict[int, list[tuple[int, int]]]) -> None:
        """Move held coordinates as far towards the next one as the rules allow."""
        limits: dict[int, list[tuple[int, int]]] = {}
        for last, lower in rules.items():
            for first, characters in lower:
                limits.setdefault(first, []).append((last, characters))
        held = {self._index(coordinate) for coordinate in self.held}
        for index in range(len(self.positions) - 2, -1, -1):
            if index in held:
                free = [self.positions[last] - characters for last, characters in limits.get(index, ())]
                self.positions[index] = min([self.positions[index + 1] - 1, *free])

    def _index(self, coordinate: float) -> int:
        """The index of the nearest coordinate."""
        after = bisect_left(self.coordinates, coordinate)
        around = [index for index in (after - 1, after) if 0 <= index < len(self.coordinates)]
        return min(around, key=lambda index: abs(self.coordinates[index] - coordinate))

    def limit(self, coordinate: float, low: int, high: int) -> None:
        """Keep the position of a coordinate within bounds."""
        index = self._index(coordinate)
        self.positions[index] = min(max(self.positions[index], low), high)

    def position(self, coordinate: float) -> int:
        """The position of a coordinate, or of the one nearest to it."""
        return self.positions[self._index(coordinate)]


def one_line_name(placed: PlacedSpot) -> str:
    """The name of a spot on one line; a blank where it has none."""
    return " ".join(str(placed.spot.name).split()) or " "


def _half_width(placed: PlacedSpot) -> int:
    """Columns left and right of the centre of a spot, inside its border."""
    if placed.spot.shape == "point":
        return 0
    widths = [display_width(one_line_name(placed)), *map(display_width, placed.spot.lines[1:])]
    return max(widths) // 2 + (placed.spot.shape in ROUND)


def _half_height(placed: PlacedSpot, y_axis: GridAxis) -> int:
    """Rows above and below the centre of a spot: a circle has one for each line that enters or leaves on a side."""
    if placed.spot.shape not in ROUND:
        return 0
    beside = [y - placed.y for y in y_axis.near(placed.y, placed.half.y) if abs(y - placed.y) <= placed.half.y]
    lines = (len(placed.spot.lines) + 2) // 2
    return max(lines, sum(y < -MERGE_DISTANCE for y in beside), sum(y > MERGE_DISTANCE for y in beside))


class TerminalGrid:
    """Positions of all parts of a layout on the grid.

    layout       in fine coordinates
    half_width   of each spot: columns left and right of its centre, inside its border
    half_height  of each spot: rows above and below its centre, at least one for each line that enters or leaves there
    x, y         the two axes
    """

    def __init__(self, layout: PictureLayout) -> None:
        self.layout = layout
        self.half_width = {id: _half_width(placed) for id, placed in layout.placed.items()}
        self.half_height: dict[str, int] = {}
        self.entered_from_above = {
            routed.line.target for routed in layout.routed if routed.points[-2][1] < routed.points[-1][1] - 1
        }
        for _ in range(4):  # a spot that is too narrow for its arrows is made wider
            self.x, self.y = self._solve_axes()
            wider = self._too_narrow()
            if not wider:
                break
            self.half_width |= wider

    def _solve_axes(self) -> tuple[GridAxis, GridAxis]:
        """Both axes, with positions for all coordinates at the present widths of spots."""
        x_axis, y_axis = GridAxis(), GridAxis()
        for routed in self.layout.routed:
            for a, b in segments(routed.points):
                if abs(a[0] - b[0]) < 0.01:
                    x_axis.add(a[0])
                else:
                    y_axis.add(a[1])
            for x, y in routed.squares:
                x_axis.add(x)
                y_axis.add(y)
        for placed in self.layout.placed.values():
            x_axis.add(placed.x)
            y_axis.add(placed.y)
        x_axis.merge()
        y_axis.merge()
        self.half_height = {id: _half_height(placed, y_axis) for id, placed in self.layout.placed.items()}
        for placed in self.layout.placed.values():
            self._separate_from_spot(placed, x_axis, y_axis)
        self._separate_spots(x_axis, y_axis)
        for routed in self.layout.routed:
            self._reserve_room(routed, x_axis, y_axis)
        x_axis.solve()
        y_axis.solve()
        self._limit_ports(y_axis)
        return x_axis, y_axis

    def _separate_from_spot(self, placed: PlacedSpot, x_axis: GridAxis, y_axis: GridAxis) -> None:
        """Everything outside a spot keeps away from it by its border and an arrowhead."""
        for x in x_axis.near(placed.x, placed.half.x + 60):
            if abs(x - placed.x) > placed.half.x + 1:
                x_axis.apart(x, placed.x, self.half_width[placed.spot.id] + 3)
            elif x < placed.x - 1:
                x_axis.hold(x)
        for y in y_axis.near(placed.y, placed.half.y + 60):
            if abs(y - placed.y) > placed.half.y + 1:
                arrow = y > placed.y or placed.spot.id in self.entered_from_above
                y_axis.apart(y, placed.y, self.half_height[placed.spot.id] + 1 + arrow)
            elif y < placed.y - 1:
                y_axis.hold(y)

    def _separate_spots(self, x_axis: GridAxis, y_axis: GridAxis) -> None:
        """Spots of one row, and of one column, do not touch."""
        rows: dict[int, list[PlacedSpot]] = {}
        columns: dict[int, list[PlacedSpot]] = {}
        for placed in self.layout.placed.values():
            rows.setdefault(round(placed.y), []).append(placed)
            columns.setdefault(round(placed.x), []).append(placed)
        for row in rows.values():
            for one, other in pairwise(sorted(row, key=lambda placed: placed.x)):
                x_axis.apart(one.x, other.x, self.half_width[one.spot.id] + self.half_width[other.spot.id] + 3)
        for column in columns.values():
            for one, other in pairwise(sorted(column, key=lambda placed: placed.y)):
                y_axis.apart(one.y, other.y, self.half_height[one.spot.id] + self.half_height[other.spot.id] + 2)

    def _reserve_room(self, routed: RoutedLine, x_axis: GridAxis, y_axis: GridAxis) -> None:
        """Reserve room for the arrowhead, squares and label of a line."""
        line_segments = segments(routed.points)
        source, target = self.layout.placed[routed.line.source], self.layout.placed[routed.line.target]
        label_room = display_width(routed.line.label) + 2 if routed.line.label else 0
        (a, b) = line_segments[-1]
        if abs(a[1] - b[1]) < 0.01:  # arrives from the side
            start = self.half_width[source.spot.id] + 1 if len(line_segments) == 1 else 0
            begin = source.x if len(line_segments) == 1 else a[0]
            x_axis.apart(begin, target.x, start + label_room + 3 + self.half_width[target.spot.id])
        else:
            start = self.half_height[source.spot.id] + 1 if len(line_segments) == 1 else 0
            begin = source.y if len(line_segments) == 1 else a[1]
            y_axis.apart(
                begin,
                target.y,
                start + 1 + bool(label_room) + self.half_height[target.spot.id] + (len(line_segments) > 1),
            )
        for x, y in routed.squares:
            x_axis.apart(x, source.x, self.half_width[source.spot.id] + 3)
            for other in routed.points:
                if abs(other[0] - x) < 1 and abs(other[1] - y) > 1:
                    y_axis.apart(other[1], y, 1)

    def _limit_ports(self, y_axis: GridAxis) -> None:
        """Keep lines that enter a spot from the side within its rows."""
        for placed in self.layout.placed.values():
            centre = y_axis.position(placed.y)
            for y in y_axis.near(placed.y, placed.half.y):
                if 1.5 < abs(y - placed.y) <= placed.half.y:
                    y_axis.limit(
                        y, centre - self.half_height[placed.spot.id], centre + self.half_height[placed.spot.id]
                    )

    def _too_narrow(self) -> dict[str, int]:
        """Spots that vertical arrows would miss, each with the half width it needs."""
        wider: dict[str, int] = {}
        for routed in self.layout.routed:
            for id, point, beyond in (
                (routed.line.source, routed.points[0], routed.points[1]),
                (routed.line.target, routed.points[-1], routed.points[-2]),
            ):
                if abs(point[0] - beyond[0]) < 0.01:
                    need = abs(self.x.position(point[0]) - self.x.position(self.layout.placed[id].x))
                    if need > self.half_width[id]:
                        wider[id] = max(need, wider.get(id, 0))
        return wider

    def at(self, point: tuple[float, float]) -> GridPoint:
        """The grid point of a point of the layout."""
        return self.x.position(point[0]), self.y.position(point[1])

    @cached_property
    def centres(self) -> dict[str, GridPoint]:
        """The centre of each spot."""
        return {id: self.at((placed.x, placed.y)) for id, placed in self.layout.placed.items()}

    @cached_property
    def occupied(self) -> set[GridPoint]:
        """Grid points covered by spots, borders included."""
        points = set()
        for id, placed in self.layout.placed.items():
            x, y = self.centres[id]
            half = self.half_width[id] + (placed.spot.shape != "point")
            points |= {
                (column, row)
                for column in range(x - half, x + half + 1)
                for row in range(y - self.half_height[placed.spot.id], y + self.half_height[placed.spot.id] + 1)
            }
        return points

    @cached_property
    def paths(self) -> list[list[GridPoint]]:
        """For each line every grid point on its path, from the centre of the source to that of the target."""
        return [self._path(routed) for routed in self.layout.routed]

    def _path(self, routed: RoutedLine) -> list[GridPoint]:
        corners = self._corners(routed)
        points = [corners[0]]
        for (x1, y1), (x2, y2) in pairwise(corners):
            dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
            x, y = x1, y1
            while (x, y) != (x2, y2):
                x, y = (x + dx, y) if x != x2 else (x, y + dy)
                points.append((x, y))
        return points

    def _corners(self, routed: RoutedLine) -> list[GridPoint]:
        """The corners of a line, and its ends in the rows or columns of the centres of its spots."""
        source, target = self.centres[routed.line.source], self.centres[routed.line.target]
        corners: list[GridPoint] = []
        for index, (a, b) in enumerate(segments(routed.points)):
            horizontal = abs(a[1] - b[1]) < 0.01
            if index == 0:
                corners.append((source[0], self.y.position(a[1])) if horizontal else (self.x.position(a[0]), source[1]))
            if index < len(routed.points) - 2:
                corners.append(self.at(b))
            else:
                corners.append((target[0], self.y.position(b[1])) if horizontal else (self.x.position(b[0]), target[1]))
        return corners
