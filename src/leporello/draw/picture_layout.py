"""Layout of a picture: coordinates of spots and paths of lines. Columns are time steps, rows are layers of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leporello.draw.column_layout import ColumnLayout, horizontal_runs, layout_column
from leporello.draw.column_routing import ColumnRoutes, route_columns
from leporello.draw.picture import Line, Picture, Spot
from leporello.draw.polylines import Point, parallel, simplified
from leporello.draw.sizes import CAPTION_FONT_SIZE, HalfSize, text_width

MARGIN = 14.0  # around the picture
ROW_GAP = 22.0  # between two rows without a label between them
LABELLED_ROW_GAP = 38.0  # with one
FAN_GAP = 36.0  # added where lines fan out
TRACK_PITCH = 11.0  # between two horizontal tracks
GRADIENT_OFFSET = 6.0  # from an arrow to the gradient's arrow beside it


@dataclass(frozen=True)
class PlacedSpot:
    """A spot with the coordinates of its centre and half its size."""

    spot: Spot
    x: float
    y: float
    half: HalfSize


@dataclass(frozen=True)
class RoutedLine:
    """A line with its path from border to border, and the centres of the squares on it.

    points    the path at right angles
    slanted   a straight path instead, for one of several lines that fan out to neighbouring rows
    """

    line: Line
    points: list[Point]
    squares: list[Point] = field(default_factory=list)
    slanted: tuple[Point, Point] | None = None

    @property
    def path(self) -> list[Point]:
        """The path as drawn in formats that have slanted lines."""
        return self.points if self.slanted is None else list(self.slanted)


@dataclass(frozen=True)
class PictureLayout:
    """A picture with coordinates for all of its parts; y grows downwards."""

    picture: Picture
    placed: dict[str, PlacedSpot]
    routed: list[RoutedLine]
    width: float
    height: float
    columns: list[float]  # x of the middle of each column
    rows: list[float]  # y of each row, from the bottom

    @property
    def borders(self) -> list[float]:
        """x of the borders between windows, half way between two columns."""
        return [(self.columns[column - 1] + self.columns[column]) / 2 for column in self.picture.borders]


def layout_picture(picture: Picture) -> PictureLayout:
    """Find coordinates for every spot and a path for every line."""
    column = layout_column(picture)
    routes = route_columns(picture, column)
    rows, height = _row_positions(picture, column, routes)
    columns, width = _column_positions(picture, column, routes)
    placed = {
        spot.id: PlacedSpot(
            spot,
            columns[spot.column] + column.x[spot.place],
            rows[column.row[spot.place]],
            column.half[spot.place],
        )
        for spot in picture.spots
    }
    router = _Router(picture, column, routes, placed, rows, columns)
    forward = [router.route(line) for line in picture.lines if line.kind == "forward"]
    back = [_gradient_path(line, forward) for line in picture.lines if line.kind != "forward"]
    return PictureLayout(picture, placed, [*forward, *back], width, height, columns, rows)


def _row_positions(picture: Picture, column: ColumnLayout, routes: ColumnRoutes) -> tuple[list[float], float]:
    """y of each row from the bottom, and the height of the picture."""
    half_heights = [column.half_height(row) for row in range(column.rows)]
    labelled = _labelled_gaps(picture, column)
    heights = [MARGIN + (half_heights[0] if half_heights else 0)]
    for row in range(1, column.rows):
        gap = LABELLED_ROW_GAP if row - 1 in labelled else ROW_GAP
        gap += FAN_GAP if row in routes.fans else 0
        gap += TRACK_PITCH * (max(0, column.tracks_above(row - 1) - 1) + routes.above[row - 1])
        heights.append(heights[-1] + half_heights[row - 1] + gap + half_heights[row])
    top = half_heights[-1] if half_heights else 0
    height = heights[-1] + top + MARGIN + TRACK_PITCH * routes.above[column.rows - 1]
    return [height - above for above in heights], height


def _labelled_gaps(picture: Picture, column: ColumnLayout) -> set[int]:
    """Rows with a label in the gap above them."""
    spots = {spot.id: spot for spot in picture.spots}
    gaps = set()
    for line in picture.lines:
        if line.names and line.kind == "forward":
            low, high = sorted((column.row[spots[line.source].place], column.row[spots[line.target].place]))
            gaps |= {high - 1, low}
    for spot in picture.spots:
        if spot.caption:
            gaps.add(column.row[spot.place] - spot.caption_below)
    return gaps


def _column_positions(picture: Picture, column: ColumnLayout, routes: ColumnRoutes) -> tuple[list[float], float]:
    """x of the middle of each column, and the width of the picture."""
    captions = max((text_width(spot.caption, CAPTION_FONT_SIZE) for spot in picture.spots), default=0.0)
    pitch = max(column.right - column.left + routes.gap, 2 * captions + 20 if captions else 0.0)
    first = MARGIN - _column_sides(picture, column, 0)[0]
    columns = [first + pitch * index for index in range(picture.columns)]
    return columns, columns[-1] + _column_sides(picture, column, picture.columns - 1)[1] + routes.right + MARGIN


def _column_sides(picture: Picture, column: ColumnLayout, index: int) -> tuple[float, float]:
    """Left and right side of a column relative to its middle; one without lines of its own may be narrower."""
    places = {spot.id: spot.place for spot in picture.spots if spot.column == index}
    if not places or any(line.source in places and line.target in places for line in picture.lines):
        return column.left, column.right
    return (
        min(column.x[place] - column.half[place].x for place in places.values()),
        max(column.x[place] + column.half[place].x for place in places.values()),
    )


@dataclass(frozen=True)
class _Router:
    """Finds the paths of lines once every spot has its coordinates."""

    picture: Picture
    column: ColumnLayout
    routes: ColumnRoutes
    placed: Mapping[str, PlacedSpot]
    rows: list[float]
    columns: list[float]

    def route(self, line: Line) -> RoutedLine:
        """The path of a forward line."""
        source, target = self.placed[line.source], self.placed[line.target]
        if line.delay:
            return self._delayed(line, source, target)
        if source.spot.column != target.spot.column:
            return self._between_columns(line, source, target)
        return RoutedLine(line, self._within_column(source, target))

    def _within_column(self, source: PlacedSpot, target: PlacedSpot) -> list[Point]:
        """Up from the source, horizontally on its tracks, up into the target; down from a spot above its reader."""
        column, middle = self.column, self.columns[source.spot.column]
        pair = (source.spot.place, target.spot.place)
        runs = horizontal_runs(pair, column.row, column.x, column.lanes, column.ports)
        down = column.row[pair[1]] < column.row[pair[0]]
        points: list[Point] = []
        for channel, _, start, end in runs:
            y = self._track(channel, pair[0])
            points += [(middle + start, y), (middle + end, y)]
        points = points[::-1] if down else points
        first = (points[0][0], source.y + (1 if down else -1) * _border_y(source, points[0][0]))
        last = (points[-1][0], target.y + (-1 if down else 1) * _border_y(target, points[-1][0]))
        return simplified([first, *points, last])

    def _track(self, channel: int, source: str) -> float:
        """y of a source's track in the channel above a row."""
        low = self.rows[channel] - self.column.half_height(channel)
        high = self.rows[channel + 1] + self.column.half_height(channel + 1)
        count = self.column.tracks_above(channel)
        free = low - high - TRACK_PITCH * self.routes.above[channel]
        place = self.column.tracks.get((channel, source), 0)
        return low - free / 2 + TRACK_PITCH * ((count - 1) / 2 - place)

    def _between_columns(self, line: Line, source: PlacedSpot, target: PlacedSpot) -> RoutedLine:
        """Out of the side of the source, vertically in the gap between columns, into the side of the target."""
        sign = 1 if target.spot.column > source.spot.column else -1
        route = self.routes.of(source.spot, target.spot)
        y = target.y + route.port
        start = (source.x + sign * source.half.x, source.y)
        end = (target.x - sign * _border_x(target, route.port), y)
        gap = self._gap(source.spot.column, sign) + sign * route.track
        points = [start, (gap, source.y)]
        if route.bus is not None:
            level = self._bus(route.bus, source.spot.column)
            far = self._gap(target.spot.column - sign, sign) + sign * route.arrival
            points += [(gap, level), (far, level), (far, y)]
        else:
            points += [(gap, y)]
        slanted = _straight_path(source, target) if route.slanted else None
        return RoutedLine(line, simplified([*points, end]), slanted=slanted)

    def _gap(self, column: int, sign: int) -> float:
        """x where the gap beside a column begins: on its right for sign 1, on its left for -1."""
        return self.columns[column] + (self.column.right if sign > 0 else self.column.left)

    def _bus(self, bus: tuple[int, int, int], column: int) -> float:
        """y of the bus on which a line passes whole columns; lines from successive columns take turns on its tracks."""
        row, first, count = bus
        low = self.rows[row] - self.column.half_height(row)
        return low - 8 - TRACK_PITCH * (first + column % count)

    def _delayed(self, line: Line, source: PlacedSpot, target: PlacedSpot) -> RoutedLine:
        """Out to the right through its squares, vertically on its track, and back into the target from the right."""
        route = self.routes.delayed[line.source, line.target, line.delay]
        right = self.columns[source.spot.column] + self.column.right
        x = right + route.track
        out, back = source.y + route.leave, target.y + route.enter
        points = [(source.x + _border_x(source, route.leave), out), (x, out), (x, back)]
        points.append((target.x + _border_x(target, route.enter), back))
        if route.on_track:
            squares = [(x, (out + back) / 2)]
        else:
            squares = [(right + offset, out) for offset in route.squares]
        return RoutedLine(line, simplified(points), squares)


def _straight_path(source: PlacedSpot, target: PlacedSpot) -> tuple[Point, Point]:
    """A straight path from border to border, between the centres."""
    dx, dy = target.x - source.x, target.y - source.y
    length = (dx * dx + dy * dy) ** 0.5
    dx, dy = dx / length, dy / length
    out, into = source.half, target.half
    return (
        (source.x + dx * out.x, source.y + dy * out.y),
        (target.x - dx * into.x, target.y - dy * into.y),
    )


def _border_y(placed: PlacedSpot, x: float) -> float:
    """Distance from a spot's centre up or down to its border, at some x."""
    half = placed.half
    beyond = abs(x - placed.x) - (half.x - half.y)
    if placed.spot.shape in ("circle", "operator") and beyond > 0:
        return float(max(0.0, half.y**2 - beyond**2)) ** 0.5
    return half.y


def _border_x(placed: PlacedSpot, port: float) -> float:
    """Distance from a spot's centre sideways to its border, at some distance above or below the centre."""
    half = placed.half
    if placed.spot.shape in ("circle", "operator"):
        return half.x - half.y + float(max(0.0, half.y**2 - port**2)) ** 0.5
    return half.x


def _gradient_path(line: Line, forward: list[RoutedLine]) -> RoutedLine:
    """The path of a gradient: that of its arrow, reversed and moved to the side."""
    arrow = next(route for route in forward if (route.line.target, route.line.source) == (line.source, line.target))
    slanted = parallel(arrow.slanted, GRADIENT_OFFSET)[::-1] if arrow.slanted else None
    return RoutedLine(
        line, parallel(arrow.points, GRADIENT_OFFSET)[::-1], slanted=(slanted[0], slanted[1]) if slanted else None
    )
