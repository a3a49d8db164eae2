"""Routes of lines from column to column, and of lines with a delay in a folded picture.

A line between columns turns on a track in the gap, enters its target at a port on the side, and passes whole columns on
a bus above a row. A line with a delay leaves on the right and returns from the right.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from leporello.draw.column_layout import ColumnLayout, assign_tracks
from leporello.draw.picture import Line, Picture, Spot, delays
from leporello.draw.sizes import SQUARE, names_width

TRACK_MARGIN = 16.0  # from a spot to the first track
TRACK_PITCH = 12.0  # between two tracks in the gap
PORT_PITCH = 9.0  # between two arrowheads
MIN_GAP = 26.0  # the least length of an arrow between columns
DELAY_MARGIN = 28.0  # from a spot to the first vertical track of delayed lines
DELAY_PITCH = 20.0  # between two such tracks

RouteKey = tuple[str, str, int]  # source, target, and columns or delay between them


@dataclass(frozen=True)
class ColumnRoute:
    """The route of a line between columns.

    track     distance from the beginning of the gap to where it turns
    port      distance from the target's centre to where it arrives, negative above
    bus       row, first track and number of tracks on which it passes whole columns; None to the next column
    arrival   distance from the beginning of the last gap to where it turns again
    slanted   whether it may be drawn straight: one of several lines that fan out to a neighbouring row
    """

    track: float
    port: float
    bus: tuple[int, int, int] | None = None
    arrival: float = 0.0
    slanted: bool = False


@dataclass(frozen=True)
class DelayRoute:
    """The route of a line with a delay in a folded picture.

    track      distance from the column's right side to its vertical track
    leave      distance from the source's centre to where it leaves, negative above
    enter      distance from the target's centre to where it arrives
    squares    distances from the column's right side to the squares, on the horizontal part that leaves the source
    on_track   whether its only square is on the vertical track instead
    """

    track: float
    leave: float
    enter: float
    squares: tuple[float, ...] = ()
    on_track: bool = False


@dataclass
class ColumnRoutes:
    """The routes of all lines that leave a column, and the room they need.

    gap       width of the gap between two columns
    right     room on the right of the last column
    between   routes of lines between columns, by places
    delayed   routes of lines with a delay, by ids of spots
    above     number of tracks for buses above each row
    fans      rows below which lines fan out
    """

    gap: float = 0.0
    right: float = 0.0
    between: dict[RouteKey, ColumnRoute] = field(default_factory=dict)
    delayed: dict[RouteKey, DelayRoute] = field(default_factory=dict)
    above: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    fans: set[int] = field(default_factory=set)

    def of(self, source: Spot, target: Spot) -> ColumnRoute:
        """The route of a line between two spots of different columns."""
        return self.between[route_key(source, target)]


def route_key(source: Spot, target: Spot) -> RouteKey:
    """What lines with the same route have in common; along a rail it is the same to and from every column."""
    span = target.column - source.column
    return (source.place, target.place, 1 if span and (source.rail or target.rail) else span)


def route_columns(picture: Picture, layout: ColumnLayout) -> ColumnRoutes:
    """Find the routes of all lines between columns and through delays."""
    routes = ColumnRoutes()
    _route_delays(routes, picture, layout)
    _route_between(routes, picture, layout)
    return routes


def _route_between(routes: ColumnRoutes, picture: Picture, layout: ColumnLayout) -> None:
    """Add the routes between columns to `routes`, and the gap they need.

    Lines between the same places over the same number of columns have one route, whatever column they start from.
    """
    spots = {spot.id: spot for spot in picture.spots}
    label_widths: dict[RouteKey, float] = {}
    for line in picture.lines:
        start, end = spots[line.source], spots[line.target]
        key = route_key(start, end)
        if line.kind == "forward" and key[2]:
            label_widths[key] = max(label_widths.get(key, 0.0), names_width(line.names))
    for line in picture.lines:
        key = route_key(spots[line.target], spots[line.source])
        if line.kind != "forward" and key in label_widths:
            label_widths[key] = max(label_widths[key], names_width(line.names))
    if not label_widths:
        routes.gap = MIN_GAP
        return
    tracks = _gap_tracks(label_widths, layout)
    ports = _side_ports(label_widths, layout)
    count = 1 + max(tracks.values(), default=-1)
    label_room = max(label_widths.values())
    routes.gap = max(MIN_GAP + label_room, TRACK_MARGIN + TRACK_PITCH * count + label_room + 20)
    for key in label_widths:
        source, target, span = key
        track = TRACK_MARGIN + TRACK_PITCH * tracks.get((source, span), 0)
        neighbours = abs(layout.row[source] - layout.row[target]) == 1
        fans = neighbours and any(abs(other[2]) > 1 for other in label_widths if other[:2] == key[:2])
        if fans:
            routes.fans.add(max(layout.row[source], layout.row[target]))
        if abs(span) == 1:
            routes.between[key] = ColumnRoute(track, ports[key], slanted=fans)
            continue
        row = layout.row[source] if layout.row[target] >= layout.row[source] else layout.row[source] - 1
        row = max(row, 0)
        first, count = routes.above[row], abs(span)
        routes.above[row] += count
        arrival = TRACK_MARGIN + TRACK_PITCH * tracks.get((source, span), 0) - TRACK_PITCH / 2
        routes.between[key] = ColumnRoute(track, ports[key], (row, first, count), arrival, fans)


def _gap_tracks(label_widths: dict[RouteKey, float], layout: ColumnLayout) -> dict[tuple[str, int], int]:
    """The track in the gap for each source and number of columns; horizontal lines to the next column need none."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for source, target, span in label_widths:
        low, high = sorted((float(layout.row[source]), float(layout.row[target])))
        if low == high and abs(span) == 1:
            continue
        so_far = spans.get((source, span), (low, high))
        spans[source, span] = (min(so_far[0], low), max(so_far[1], high) + 0.2)
    return assign_tracks({key: (100 * low, 100 * high) for key, (low, high) in spans.items()})


def _side_ports(label_widths: dict[RouteKey, float], layout: ColumnLayout) -> dict[RouteKey, float]:
    """`ColumnRoute.port` of lines that enter a spot from a side: 0 for horizontal ones, others towards their source."""
    ports: dict[RouteKey, float] = {}
    for target in {target for _, target, _ in label_widths}:
        for sign in (-1, 1):
            incoming = [key for key in label_widths if key[1] == target and key[2] * sign > 0]
            rises = {key: _rise(key, layout) for key in incoming}
            pitch = min(PORT_PITCH, 0.8 * layout.half[target].y / max(1, len(incoming) - 1))
            straight = [key for key in incoming if rises[key] == 0]
            sides = {rises[key] > 0 for key in incoming if key not in straight}
            leaves = any(
                source == target and layout.row[reader] != layout.row[target] and span * sign > 0
                for source, reader, span in label_widths
            )
            first = 1.0 if straight or leaves else 0.5 if len(sides) == 2 else 0.0
            for side in (-1, 1):
                on_side = sorted((key for key in incoming if rises[key] * side > 0), key=lambda key: abs(rises[key]))
                for number, key in enumerate(on_side):
                    ports[key] = -side * (first + number) * pitch  # y grows downwards
            ports |= dict.fromkeys(straight, 0.0)
    return ports


def _rise(key: RouteKey, layout: ColumnLayout) -> float:
    """Rows from the target up to where its line comes from, negative below; a bus runs above its source."""
    source, target, span = key
    rows = layout.row[source] - layout.row[target]
    return rows if abs(span) == 1 else rows + 0.5


def _route_delays(routes: ColumnRoutes, picture: Picture, layout: ColumnLayout) -> None:
    """Add the routes of lines with a delay to `routes`, and the room they need on the right.

    Lines of one source share a trunk with its squares; each branches off after the square of its delay.
    """
    places = {spot.id: spot.place for spot in picture.spots}
    delayed = [line for line in picture.lines if line.delay and line.kind == "forward"]
    if not delayed:
        return
    leaving, entering = _delay_ports(delayed, places, layout)
    tracks = _delay_tracks(delayed, places, layout)
    for line in delayed:
        source, delay = line.source, line.delay
        is_alone = delays(delayed)[source] == 1 and sum(other.source == source for other in delayed) == 1
        tracks_passed = [tracks[source, number] for number in range(1, delay + 1)]
        routes.delayed[source, line.target, delay] = DelayRoute(
            DELAY_MARGIN + DELAY_PITCH * tracks[source, delay],
            leaving[source],
            entering[source, line.target, delay],
            () if is_alone else tuple(DELAY_MARGIN + DELAY_PITCH * track - DELAY_PITCH / 2 for track in tracks_passed),
            is_alone,
        )
    label_room = max(names_width(line.names) for line in delayed)
    routes.right = DELAY_MARGIN + DELAY_PITCH * max(tracks.values()) + SQUARE / 2 + label_room


def _delay_tracks(delayed: list[Line], places: dict[str, str], layout: ColumnLayout) -> dict[tuple[str, int], int]:
    """The vertical track of each source and delay: short lines near the spots, longer delays further out."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for source, longest in delays(delayed).items():
        rows = [layout.row[places[source]]]
        rows += [layout.row[places[line.target]] for line in delayed if line.source == source]
        for delay in range(1, longest + 1):
            spans[source, delay] = (100.0 * min(rows) - 20, 100.0 * max(rows) + 20)
    rules = [((source, delay), (source, delay + 1)) for source, delay in spans if (source, delay + 1) in spans]
    return assign_tracks(spans, rules)


def _delay_ports(
    delayed: list[Line], places: dict[str, str], layout: ColumnLayout
) -> tuple[dict[str, float], dict[RouteKey, float]]:
    """Ports on the right of each spot: for each source where its lines leave, for each line where it arrives."""
    leaving: dict[str, float] = {}
    entering: dict[RouteKey, float] = {}
    for spot in dict.fromkeys([line.source for line in delayed] + [line.target for line in delayed]):
        incoming = [line for line in delayed if line.target == spot]
        leaves = any(line.source == spot for line in delayed)
        count = len(incoming) + leaves
        widest_pitch = PORT_PITCH * 2.2 if count == 2 else PORT_PITCH
        pitch = min(widest_pitch, 1.5 * layout.half[places[spot]].y / max(1, count - 1))
        incoming.sort(key=lambda line: (line.source != spot, -layout.row[places[line.source]], line.delay))
        offsets = [(index - (count - 1) / 2) * pitch for index in range(count)]
        if leaves:
            leaving[spot] = offsets.pop(0)
        for line, offset in zip(incoming, offsets, strict=True):
            entering[line.source, line.target, line.delay] = offset
    return leaving, entering
