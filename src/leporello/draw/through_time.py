"""Passages: how lines go from column to column, and how they loop back in a folded picture.

Knows tracks in the gap between columns, ports on the sides of spots, and buses for lines that pass whole columns.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from leporello.draw.measure import names_width
from leporello.draw.picture import Line, Picture, Spot, delays
from leporello.draw.sizes import SQUARE
from leporello.draw.step import Step
from leporello.draw.tracks import tracks

BESIDE = 16.0  # from a spot to the first track
TRACK = 12.0
PORT = 9.0
ARROW = 26.0  # the least length of an arrow between columns
LOOP = 28.0  # from a spot to the way its state takes back
TURN = 20.0  # between two such ways


@dataclass(frozen=True)
class Passage:
    """The way of a line between columns.

    track     from the gap's beginning to where it turns
    port      how far above or below the target's middle it arrives
    bus       row, first track and number of tracks on which it passes whole columns
    arrival   from the last gap's beginning to where it turns again
    slanted   whether it may go straight instead: one of several between neighbouring rows
    """

    track: float
    port: float
    bus: tuple[int, int, int] | None = None
    arrival: float = 0.0
    slanted: bool = False


@dataclass(frozen=True)
class Loop:
    """The way of a line with a delay: its track, its ports, and where its squares stand."""

    track: float
    leave: float
    enter: float
    squares: tuple[float, ...] = ()
    on_track: bool = False


@dataclass
class Passages:
    """All of them.

    gap     between two columns
    right   beside the last column
    above   for each row how many buses run above it
    fans    rows below which lines fan out
    """

    gap: float = 0.0
    right: float = 0.0
    between: dict[tuple[str, str, int], Passage] = field(default_factory=dict)
    loops: dict[tuple[str, str, int], Loop] = field(default_factory=dict)
    above: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    fans: set[int] = field(default_factory=set)

    def of(self, source: Spot, target: Spot) -> Passage:
        return self.between[source.place, target.place, target.column - source.column]


def passages_of(picture: Picture, step: Step) -> Passages:
    found = Passages()
    _add_loops(found, picture, step)
    _add_between(found, picture, step)
    return found


def _add_between(found: Passages, picture: Picture, step: Step) -> None:
    spots = {spot.id: spot for spot in picture.spots}
    kinds: dict[tuple[str, str, int], float] = {}  # from, to, columns: width of the label
    for line in picture.lines:
        start, end = spots[line.source], spots[line.target]
        span = end.column - start.column
        if line.kind == "forward" and span:
            key = (start.place, end.place, span)
            kinds[key] = max(kinds.get(key, 0.0), names_width(line.names))
    if not kinds:
        found.gap = ARROW
        return
    lane = _gap_tracks(kinds, step)
    ports = _side_ports(kinds, step)
    widest = 1 + max(lane.values(), default=-1)
    room = max(kinds.values())
    found.gap = max(ARROW + room, BESIDE + TRACK * widest + room + 20)
    for key in kinds:
        source, target, span = key
        track = BESIDE + TRACK * lane.get((source, span), 0)
        neighbours = abs(step.row[source] - step.row[target]) == 1
        fans = neighbours and any(abs(other[2]) > 1 for other in kinds if other[:2] == key[:2])
        if fans:
            found.fans.add(max(step.row[source], step.row[target]))
        if abs(span) == 1:
            found.between[key] = Passage(track, ports[key], slanted=fans)
            continue
        row = step.row[source] if step.row[target] >= step.row[source] else step.row[source] - 1
        row = max(row, 0)
        first, count = found.above[row], abs(span)
        found.above[row] += count
        arrival = BESIDE + TRACK * lane.get((source, span), 0) - TRACK / 2
        found.between[key] = Passage(track, ports[key], (row, first, count), arrival, fans)


def _gap_tracks(kinds: dict[tuple[str, str, int], float], step: Step) -> dict[tuple[str, int], int]:
    """The track in the gap for each source; straight lines need none."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for source, target, span in kinds:
        low, high = sorted((float(step.row[source]), float(step.row[target])))
        if low == high and abs(span) == 1:
            continue
        before = spans.get((source, span), (low, high))
        spans[source, span] = (min(before[0], low), max(before[1], high) + 0.2)
    return tracks({key: (100 * low, 100 * high) for key, (low, high) in spans.items()})


def _side_ports(kinds: dict[tuple[str, str, int], float], step: Step) -> dict[tuple[str, str, int], float]:
    """Arrowheads above each other: straight lines in the middle, others on the side they come from."""
    ports: dict[tuple[str, str, int], float] = {}
    for target in {target for _, target, _ in kinds}:
        for way in (-1, 1):
            reading = [key for key in kinds if key[1] == target and key[2] * way > 0]
            come = {key: _comes(key, step) for key in reading}
            room = min(PORT, 0.8 * step.half[target].along / max(1, len(reading) - 1))
            straight = [key for key in reading if come[key] == 0]
            sides = {come[key] > 0 for key in reading if key not in straight}
            leaves = any(
                source == target and step.row[reader] != step.row[target] and span * way > 0
                for source, reader, span in kinds
            )
            first = 1.0 if straight or leaves else 0.5 if len(sides) == 2 else 0.0
            for side in (-1, 1):
                own = sorted((key for key in reading if come[key] * side > 0), key=lambda key: abs(come[key]))
                for place, key in enumerate(own):
                    ports[key] = -side * (first + place) * room  # y grows downwards
            ports |= dict.fromkeys(straight, 0.0)
    return ports


def _comes(key: tuple[str, str, int], step: Step) -> float:
    """From how far above (below, if negative) a line reaches its target; a bus runs above its source."""
    source, target, span = key
    rows = step.row[source] - step.row[target]
    return rows if abs(span) == 1 else rows + 0.5


def _add_loops(found: Passages, picture: Picture, step: Step) -> None:
    """One trunk per source, with its squares; lines branch off behind the square they wait for."""
    places = {spot.id: spot.place for spot in picture.spots}
    waiting = [line for line in picture.lines if line.delay and line.kind == "forward"]
    if not waiting:
        return
    leaving, entering = _loop_ports(waiting, places, step)
    lane = _loop_tracks(waiting, places, step)
    for line in waiting:
        source, delay = line.source, line.delay
        alone = delays(waiting)[source] == 1 and sum(other.source == source for other in waiting) == 1
        found.loops[source, line.target, delay] = Loop(
            LOOP + TURN * lane[source, delay],
            leaving[source],
            entering[source, line.target, delay],
            () if alone else tuple(LOOP + TURN * lane[source, before] - TURN / 2 for before in range(1, delay + 1)),
            alone,
        )
    found.right = LOOP + TURN * max(lane.values()) + SQUARE / 2 + max(names_width(line.names) for line in waiting)


def _loop_tracks(waiting: list[Line], places: dict[str, str], step: Step) -> dict[tuple[str, int], int]:
    """The track of each source and delay, counted from the spots: short ways inside, longer delays further out."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for source, longest in delays(waiting).items():
        rows = [step.row[places[source]]]
        rows += [step.row[places[line.target]] for line in waiting if line.source == source]
        for delay in range(1, longest + 1):
            spans[source, delay] = (100.0 * min(rows) - 20, 100.0 * max(rows) + 20)
    rules = [((source, delay), (source, delay + 1)) for source, delay in spans if (source, delay + 1) in spans]
    return tracks(spans, rules)


def _loop_ports(
    waiting: list[Line], places: dict[str, str], step: Step
) -> tuple[dict[str, float], dict[tuple[str, str, int], float]]:
    """On the right of each spot: what leaves above, what comes back below, or the other way round."""
    leaving: dict[str, float] = {}
    entering: dict[tuple[str, str, int], float] = {}
    for spot in dict.fromkeys([line.source for line in waiting] + [line.target for line in waiting]):
        reading = [line for line in waiting if line.target == spot]
        leaves = any(line.source == spot for line in waiting)
        count = len(reading) + leaves
        room = min(PORT * 2.2 if count == 2 else PORT, 1.5 * step.half[places[spot]].along / max(1, count - 1))
        reading.sort(key=lambda line: (line.source != spot, -step.row[places[line.source]], line.delay))
        offsets = [(index - (count - 1) / 2) * room for index in range(count)]
        if leaves:
            leaving[spot] = offsets.pop(0)
        for line, offset in zip(reading, offsets, strict=True):
            entering[line.source, line.target, line.delay] = offset
    return leaving, entering
