"""Layout of one column, that is one time step: rows, x of each place, and where lines run between the rows.

Lines within a column go up. A line that skips rows passes them in a vertical lane where no spot stands; between rows,
lines run horizontally on tracks. All lines of one source may share their path; lines of different sources never do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from leporello.draw.picture import Picture
from leporello.draw.row_assignment import assign_rows, lines_within, timed_places
from leporello.draw.sizes import HalfSize, spot_sizes

Key = TypeVar("Key", bound=Hashable)
Span = tuple[float, float]
Pair = tuple[str, str]  # the places at the start and the end of a line
SPOT_SPACING = 20.0  # between two spots of a row
LANE_SPACING = 13.0  # between a lane and a spot, or another lane
PORT_SPACING = 11.0  # between two arrowheads at one spot
TRACK_SPACING = 8.0  # between two lines on one track


@dataclass(frozen=True)
class ColumnLayout:
    """Where everything of one column is, relative to the column's middle; the same in all columns.

    row      of each place, counted from the bottom
    x        of the centre of each place
    half     half the size of each place
    lanes    x at which a line passes the rows it skips
    ports    x at which a line enters its target
    tracks   for each channel (the space above a row) and source, the track on which its lines run horizontally
    """

    row: dict[str, int]
    x: dict[str, float]
    half: dict[str, HalfSize]
    lanes: dict[Pair, float]
    ports: dict[Pair, float]
    tracks: dict[tuple[int, str], int]

    @property
    def rows(self) -> int:
        return 1 + max(self.row.values(), default=-1)

    @property
    def left(self) -> float:
        return min([self.x[p] - self.half[p].x for p in self.row] + list(self.lanes.values()), default=0.0)

    @property
    def right(self) -> float:
        return max([self.x[p] + self.half[p].x for p in self.row] + list(self.lanes.values()), default=0.0)

    def half_height(self, row: int) -> float:
        """Half the height of the tallest spot of a row."""
        return max(self.half[place].y for place in self.row if self.row[place] == row)

    def tracks_above(self, row: int) -> int:
        """The number of horizontal tracks in the channel above a row."""
        return 1 + max((track for (channel, _), track in self.tracks.items() if channel == row), default=-1)


def layout_column(picture: Picture) -> ColumnLayout:
    """Lay out the column of a picture: one layout, which all of its columns have."""
    rows, half, pairs = assign_rows(picture), spot_sizes(picture), sorted(lines_within(picture))
    row = {place: index for index, places in enumerate(rows) for place in places}
    x = _place_spots(rows, half, pairs, timed_places(picture))
    lanes = _assign_lanes(row, x, half, pairs)
    ports = _assign_ports(row, x, half, lanes, pairs)
    return ColumnLayout(row, x, half, lanes, ports, _assign_channel_tracks(row, x, lanes, ports, pairs))


def _place_spots(
    rows: Sequence[list[str]], half: Mapping[str, HalfSize], pairs: Sequence[Pair], timed: set[str]
) -> dict[str, float]:
    """x of each place: near the other ends of its lines; in the middle where it is in `timed` and alone in its row.

    Sweeps down and up average the positions of neighbours; the first six also reorder each row, in `rows` itself.

    timed   places with lines to or from other columns
    """
    neighbours: dict[str, list[str]] = {}
    for source, target in pairs:
        neighbours.setdefault(source, []).append(target)
        neighbours.setdefault(target, []).append(source)
    x = {place: 0.0 for places in rows for place in places}
    for places in rows:
        _spread_row(places, x, half)
    for sweep in range(12):
        for places in rows if sweep % 2 else reversed(rows):
            if len(places) == 1 and (places[0] in timed or all(len(other) == 1 for other in rows)):
                x[places[0]] = 0.0
                continue
            wanted = {
                place: sum(x[other] for other in neighbours.get(place, [place])) / len(neighbours.get(place, [place]))
                for place in places
            }
            if sweep < 6:
                places.sort(key=lambda place: wanted[place])
            x.update(wanted)
            _spread_row(places, x, half)
    return x


def _spread_row(places: Sequence[str], x: dict[str, float], half: Mapping[str, HalfSize]) -> None:
    """Push neighbours of a row apart in `x`, as little as possible: groups that touch are joined and move together."""
    groups: list[tuple[list[str], float]] = []  # places, x of the first
    for place in places:
        groups.append(([place], x[place]))
        while len(groups) > 1 and _groups_touch(groups[-2], groups[-1], half):
            joined = groups[-2][0] + groups[-1][0]
            starts = [x[one] - offset for one, offset in zip(joined, _offsets(joined, half), strict=True)]
            groups[-2:] = [(joined, sum(starts) / len(starts))]
    for group, start in groups:
        for place, offset in zip(group, _offsets(group, half), strict=True):
            x[place] = start + offset


def _offsets(group: Sequence[str], half: Mapping[str, HalfSize]) -> list[float]:
    """Distances from the centre of the first spot to each, when they stand side by side."""
    offsets = [0.0]
    for one, other in pairwise(group):
        offsets.append(offsets[-1] + half[one].x + half[other].x + SPOT_SPACING)
    return offsets


def _groups_touch(left: tuple[list[str], float], right: tuple[list[str], float], half: Mapping[str, HalfSize]) -> bool:
    return left[1] + _offsets([*left[0], right[0][0]], half)[-1] > right[1]


def _assign_lanes(
    row: Mapping[str, int], x: Mapping[str, float], half: Mapping[str, HalfSize], pairs: Sequence[Pair]
) -> dict[Pair, float]:
    """For each line that skips rows the nearest x that no spot and no other lane blocks; short lines choose first."""
    lanes: dict[Pair, float] = {}
    long = [pair for pair in pairs if abs(row[pair[1]] - row[pair[0]]) > 1]
    for pair in sorted(long, key=lambda pair: (abs(row[pair[1]] - row[pair[0]]), pair)):
        low, high = sorted((row[pair[0]], row[pair[1]]))
        blocked = [
            (x[place] - half[place].x - LANE_SPACING, x[place] + half[place].x + LANE_SPACING)
            for place in row
            if low < row[place] < high
        ]
        for other, lane in lanes.items():
            first, last = sorted((row[other[0]], row[other[1]]))
            if other[0] != pair[0] and first < high and low < last:
                blocked.append((lane - LANE_SPACING, lane + LANE_SPACING))
        ends = [x[pair[0]], x[pair[1]]]
        # A straight line may come closer to a spot than one with a bend.
        tight = [(left + LANE_SPACING / 2, right - LANE_SPACING / 2) for left, right in blocked]
        free = [at for at in ends if not _is_inside(at, tight)]
        free += [at for span in blocked for at in span if not _is_inside(at, blocked)]
        lanes[pair] = min(free, key=lambda at: (round(abs(at - ends[0]) + abs(at - ends[1]), 3), abs(at - ends[0]), at))
    return lanes


def _is_inside(x: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(low < x < high for low, high in spans)


def _assign_ports(
    row: Mapping[str, int],
    x: Mapping[str, float],
    half: Mapping[str, HalfSize],
    lanes: Mapping[Pair, float],
    pairs: Sequence[Pair],
) -> dict[Pair, float]:
    """x of the arrowheads at each spot: straight ahead of a line where that is free, else on the side it comes from."""
    ports: dict[Pair, float] = {}
    for target in x:
        for below in (True, False):
            incoming = [pair for pair in pairs if pair[1] == target and (row[pair[0]] < row[target]) == below]
            origins = {pair: lanes.get(pair, x[pair[0]]) - x[target] for pair in incoming}
            leaves = any(source == target and (row[reader] < row[target]) == below for source, reader in pairs)
            offsets = _port_offsets(origins, half[target].x, leaves=leaves)
            ports |= {pair: x[target] + offset for pair, offset in offsets.items()}
    return ports


def _port_offsets(origins: Mapping[Pair, float], half: float, *, leaves: bool) -> dict[Pair, float]:
    """Offsets of the arrowheads at one side of a spot from its centre.

    origins   from the centre to where each line comes from
    half      half the width of the spot
    leaves    whether a line leaves on this side: it takes the centre
    """
    order = sorted(origins, key=lambda pair: (origins[pair], pair))
    straight = {
        pair: origins[pair]
        for pair in order
        if abs(origins[pair]) <= 0.7 * half and not (leaves and abs(origins[pair]) < PORT_SPACING * 0.75)
    }
    offsets = _offsets_beside(straight, order, origins, half, leaves=leaves)
    if _are_apart(straight.values()) and _are_apart(offsets.values()):
        return offsets
    return _offsets_beside({}, order, origins, half, leaves=leaves)


def _are_apart(offsets: Iterable[float]) -> bool:
    return all(b - a >= PORT_SPACING * 0.75 for a, b in pairwise(sorted(offsets)))


def _offsets_beside(
    straight: Mapping[Pair, float], order: Sequence[Pair], origins: Mapping[Pair, float], half: float, *, leaves: bool
) -> dict[Pair, float]:
    """Offsets of all arrowheads: those in `straight` unchanged, the others beside them, on the side each comes from."""
    offsets = dict(straight)
    if len(order) == 1 and not leaves:
        return {order[0]: offsets.get(order[0], 0.0)}
    for side in (-1, 1):
        rest = [pair for pair in order if pair not in offsets and (origins[pair] > 0) == (side > 0)]
        rest.sort(key=lambda pair: abs(origins[pair]))
        taken = [abs(offset) for offset in offsets.values() if offset * side > 0 or offset == 0]
        first = max(taken, default=0.0 if offsets or leaves else -PORT_SPACING / 2)
        spacing = min(PORT_SPACING, (0.9 * half - first) / max(1, len(rest)))
        for number, pair in enumerate(rest, start=1):
            offsets[pair] = side * (first + number * spacing)
    return offsets


def _assign_channel_tracks(
    row: Mapping[str, int],
    x: Mapping[str, float],
    lanes: Mapping[Pair, float],
    ports: Mapping[Pair, float],
    pairs: Sequence[Pair],
) -> dict[tuple[int, str], int]:
    """The track of each source in each channel, the space above a row, where one of its lines runs horizontally.

    Keys are (channel, source). Lines of two sources that would overlap get different tracks.
    """
    tracks: dict[tuple[int, str], int] = {}
    for channel in range(max(row.values(), default=0)):
        runs = [run for pair in pairs for run in horizontal_runs(pair, row, x, lanes, ports) if run[0] == channel]
        spans: dict[str, tuple[float, float]] = {}
        for _, source, start, end in runs:
            if start != end:
                low, high = spans.get(source, (start, start))
                spans[source] = (min(low, start, end), max(high, start, end))
        below = [
            (one, other)
            for _, one, start, _ in runs
            for _, other, _, end in runs
            if one != other and one in spans and other in spans and abs(start - end) < 4
        ]
        tracks |= {(channel, source): track for source, track in assign_tracks(spans, below).items()}
    return tracks


def horizontal_runs(
    pair: Pair,
    row: Mapping[str, int],
    x: Mapping[str, float],
    lanes: Mapping[Pair, float],
    ports: Mapping[Pair, float],
) -> list[tuple[int, str, float, float]]:
    """Where a line runs horizontally: (channel, source, x of the lower end, x of the upper end) for each run.

    There is one run; a line that skips rows has two, one on either side of its lane.
    """
    source, target = pair
    if row[target] < row[source]:  # a spot above its reader: the line goes down
        low, high = row[target], row[source]
        start, end = ports[pair], x[source]
    else:
        low, high = row[source], row[target]
        start, end = x[source], ports[pair]
    if pair not in lanes:
        return [(low, source, start, end)]
    return [(low, source, start, lanes[pair]), (high - 1, source, lanes[pair], end)]


def assign_tracks(spans: Mapping[Key, Span], below: Sequence[tuple[Key, Key]] = ()) -> dict[Key, int]:
    """Assign parallel tracks, from 0, to intervals so that no two on one track overlap: greedily, short ones first.

    below   pairs of which the first must have a lower track than the second
    """
    tracks: dict[Key, int] = {}
    waiting = sorted(spans, key=lambda key: (spans[key][1] - spans[key][0], str(key)))
    while waiting:
        ready = [key for key in waiting if not any(over == key and under in waiting for under, over in below)]
        key = (ready or waiting)[0]  # circular rules cannot all be kept
        waiting.remove(key)
        track = max((tracks[under] + 1 for under, over in below if over == key and under in tracks), default=0)
        while any(tracks[other] == track and _overlap(spans[key], spans[other]) for other in tracks):
            track += 1
        tracks[key] = track
    return tracks


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] + TRACK_SPACING and other[0] < one[1] + TRACK_SPACING
