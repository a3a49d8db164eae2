"""`Layout`: where every spot stands and which way every line takes. Columns are time steps, rows are layers of a step.

Knows nothing of formats: the writers turn it into SVG or text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leporello.draw.picture import Line, Picture, Spot
from leporello.draw.route import Point, beside, simplified
from leporello.draw.sizes import Half
from leporello.draw.step import Step, step_of, turns_of
from leporello.draw.through_time import Passages, passages_of

MARGIN = 14.0
CHANNEL = 22.0  # between two rows without a label between them
LABELLED = 38.0  # with one
TRACK = 11.0
FAN = 36.0  # more, where lines fan out
GRADIENT = 6.0  # from an arrow to the gradient's beside it


@dataclass(frozen=True)
class Placed:
    """A spot with the middle it stands on."""

    spot: Spot
    x: float
    y: float
    half: Half


@dataclass(frozen=True)
class Routed:
    """A line with its way from border to border, and the squares on it.

    points    at right angles
    slanted   a straight way instead, for one of several lines that fan out to neighbouring rows
    """

    line: Line
    points: list[Point]
    squares: list[Point] = field(default_factory=list)
    slanted: tuple[Point, Point] | None = None

    @property
    def way(self) -> list[Point]:
        """As it is drawn where slanted lines can be."""
        return self.points if self.slanted is None else list(self.slanted)


@dataclass(frozen=True)
class Layout:
    """A picture with a place for everything; y grows downwards."""

    picture: Picture
    placed: dict[str, Placed]
    routed: list[Routed]
    width: float
    height: float
    columns: list[float]  # x of each column's middle line
    rows: list[float]  # y of each row, from the bottom

    @property
    def borders(self) -> list[float]:
        """x of the borders of windows, half way between two columns."""
        return [(self.columns[column - 1] + self.columns[column]) / 2 for column in self.picture.borders]


def layout(picture: Picture) -> Layout:
    """A place for every spot, a way for every line."""
    step = step_of(picture)
    passages = passages_of(picture, step)
    rows, height = _heights(picture, step, passages)
    columns, width = _columns(picture, step, passages)
    placed = {
        spot.id: Placed(
            spot,
            columns[spot.column] + step.across[spot.place],
            rows[step.row[spot.place]],
            step.half[spot.place],
        )
        for spot in picture.spots
    }
    writer = _Routes(picture, step, passages, placed, rows, columns)
    forward = [writer.route(line) for line in picture.lines if line.kind == "forward"]
    back = [_against(line, forward, placed) for line in picture.lines if line.kind != "forward"]
    return Layout(picture, placed, [*forward, *back], width, height, columns, rows)


def _heights(picture: Picture, step: Step, passages: Passages) -> tuple[list[float], float]:
    """y of each row, and the height of all."""
    tall = [max(step.half[place].along for place in step.row if step.row[place] == row) for row in range(step.rows)]
    labelled = _labelled(picture, step)
    heights = [MARGIN + (tall[0] if tall else 0)]
    for row in range(1, step.rows):
        between = LABELLED if row - 1 in labelled else CHANNEL
        between += FAN if row in passages.fans else 0
        between += TRACK * (max(0, step.tracks_above(row - 1) - 1) + passages.above[row - 1])
        heights.append(heights[-1] + tall[row - 1] + between + tall[row])
    height = heights[-1] + (tall[-1] if tall else 0) + MARGIN + TRACK * passages.above[step.rows - 1]
    return [height - above for above in heights], height


def _labelled(picture: Picture, step: Step) -> set[int]:
    """Channels in which a label stands."""
    spots = {spot.id: spot for spot in picture.spots}
    found = set()
    for line in picture.lines:
        if line.names and line.kind == "forward":
            low, high = sorted((step.row[spots[line.source].place], step.row[spots[line.target].place]))
            found |= {high - 1, low}
    return found


def _columns(picture: Picture, step: Step, passages: Passages) -> tuple[list[float], float]:
    """x of each column's middle line, and the width of all."""
    pitch = step.right - step.left + passages.gap
    first = MARGIN - _sides(picture, step, 0)[0]
    columns = [first + pitch * column for column in range(picture.columns)]
    return columns, columns[-1] + _sides(picture, step, picture.columns - 1)[1] + passages.right + MARGIN


def _sides(picture: Picture, step: Step, column: int) -> tuple[float, float]:
    """How far a column reaches to the left and to the right; one that only hints at a step may be narrower."""
    own = {spot.id: spot.place for spot in picture.spots if spot.column == column}
    if not own or any(line.source in own and line.target in own for line in picture.lines):
        return step.left, step.right
    return (
        min(step.across[place] - step.half[place].across for place in own.values()),
        max(step.across[place] + step.half[place].across for place in own.values()),
    )


@dataclass(frozen=True)
class _Routes:
    """Ways of lines, once every spot has its place."""

    picture: Picture
    step: Step
    passages: Passages
    placed: Mapping[str, Placed]
    rows: list[float]
    columns: list[float]

    def route(self, line: Line) -> Routed:
        source, target = self.placed[line.source], self.placed[line.target]
        if line.delay:
            return self._loop(line, source, target)
        if source.spot.column != target.spot.column:
            return self._through_time(line, source, target)
        return Routed(line, self._within(source, target))

    def _within(self, source: Placed, target: Placed) -> list[Point]:
        """Up from the source, across on its tracks, up into the target; down for what stands above its reader."""
        step, column = self.step, self.columns[source.spot.column]
        pair = (source.spot.place, target.spot.place)
        turns = turns_of(pair, step.row, step.across, step.lanes, step.ports)
        down = step.row[pair[1]] < step.row[pair[0]]
        points: list[Point] = []
        for channel, _, start, end in turns:
            y = self.track(channel, pair[0])
            points += [(column + start, y), (column + end, y)]
        points = points[::-1] if down else points
        first = (points[0][0], source.y + (1 if down else -1) * _edge(source, points[0][0]))
        last = (points[-1][0], target.y + (-1 if down else 1) * _edge(target, points[-1][0]))
        return simplified([first, *points, last])

    def track(self, channel: int, source: str) -> float:
        """y of a source's track in the channel above a row."""
        low = self.rows[channel] - self._tall(channel)
        high = self.rows[channel + 1] + self._tall(channel + 1)
        count = self.step.tracks_above(channel)
        free = low - high - TRACK * self.passages.above[channel]
        place = self.step.tracks.get((channel, source), 0)
        return low - free / 2 + TRACK * ((count - 1) / 2 - place)

    def _tall(self, row: int) -> float:
        return max(self.step.half[place].along for place in self.step.row if self.step.row[place] == row)

    def _through_time(self, line: Line, source: Placed, target: Placed) -> Routed:
        """Out of the source's side, along the gap between columns, into the side of the target."""
        way = 1 if target.spot.column > source.spot.column else -1
        passage = self.passages.of(source.spot, target.spot)
        y = target.y + passage.port
        start = (source.x + way * source.half.across, source.y)
        end = (target.x - way * _reach(target, passage.port), y)
        gap = self._gap(source.spot.column, way) + way * passage.track
        points = [start, (gap, source.y)]
        if passage.bus is not None:
            level = self._bus(passage.bus, source.spot.column)
            far = self._gap(target.spot.column - way, way) + way * passage.arrival
            points += [(gap, level), (far, level), (far, y)]
        else:
            points += [(gap, y)]
        slanted = _straight(source, target) if passage.slanted else None
        return Routed(line, simplified([*points, end]), slanted=slanted)

    def _gap(self, column: int, way: int) -> float:
        """x where the gap beside a column begins, on the side where time goes."""
        return self.columns[column] + (self.step.right if way > 0 else self.step.left)

    def _bus(self, bus: tuple[int, int, int], column: int) -> float:
        """y of a track above a row on which lines pass whole columns; neighbours take turns."""
        row, first, count = bus
        low = self.rows[row] - self._tall(row)
        return low - 8 - TRACK * (first + column % count)

    def _loop(self, line: Line, source: Placed, target: Placed) -> Routed:
        """Out to the right, through its squares, along its track, and back into the target from the right."""
        loop = self.passages.loops[line.source, line.target, line.delay]
        right = self.columns[source.spot.column] + self.step.right
        x = right + loop.track
        out, back = source.y + loop.leave, target.y + loop.enter
        points = [(source.x + _reach(source, loop.leave), out), (x, out), (x, back)]
        points.append((target.x + _reach(target, loop.enter), back))
        if loop.on_track:
            squares = [(x, (out + back) / 2)]
        else:
            squares = [(right + offset, out) for offset in loop.squares]
        return Routed(line, simplified(points), squares)


def _straight(source: Placed, target: Placed) -> tuple[Point, Point]:
    """From border to border, towards each other's middle."""
    dx, dy = target.x - source.x, target.y - source.y
    far = (dx * dx + dy * dy) ** 0.5
    dx, dy = dx / far, dy / far
    out, into = source.half, target.half
    return (
        (source.x + dx * out.across, source.y + dy * out.along),
        (target.x - dx * into.across, target.y - dy * into.along),
    )


def _edge(placed: Placed, x: float) -> float:
    """How far the border is above or below the middle, at some x."""
    half = placed.half
    beyond = abs(x - placed.x) - (half.across - half.along)
    if placed.spot.shape in ("circle", "operator") and beyond > 0:
        return float(max(0.0, half.along**2 - beyond**2)) ** 0.5
    return half.along


def _reach(placed: Placed, port: float) -> float:
    """How far the border is beside the middle, so far above or below it."""
    half = placed.half
    if placed.spot.shape in ("circle", "operator"):
        return half.across - half.along + float(max(0.0, half.along**2 - port**2)) ** 0.5
    return half.across


def _against(line: Line, forward: list[Routed], placed: Mapping[str, Placed]) -> Routed:
    """The gradient's way: that of its arrow, turned round, a little to the side."""
    own = next(route for route in forward if (route.line.target, route.line.source) == (line.source, line.target))
    slanted = beside(own.slanted, GRADIENT)[::-1] if own.slanted else None
    return Routed(line, beside(own.points, GRADIENT)[::-1], slanted=(slanted[0], slanted[1]) if slanted else None)
