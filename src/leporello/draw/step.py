"""`Step`: where everything of one step stands, relative to its column: rows, places across, lanes and ports of lines.

Lines within a step go up. One that skips rows passes them in a lane where nothing stands; between rows, lines run
across on tracks of their own. All lines of one source may share their way; those of different sources never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leporello.draw.picture import Picture
from leporello.draw.rows import lines_within, rows_of, timed_places
from leporello.draw.sizes import Half, halves
from leporello.draw.tracks import tracks

Pair = tuple[str, str]  # the places a line leads from and to
APART = 20.0  # between two spots of a row
LANE = 13.0  # between a lane and a spot, or another lane
PORT = 11.0  # between two arrowheads at one spot


@dataclass(frozen=True)
class Step:
    """The layout of one step.

    row      of each place, from the bottom
    across   x of each place
    half     size of each place
    lanes    x at which a line passes the rows it skips
    ports    x at which a line enters its target from below
    tracks   for each channel above a row and each source, the track on which its lines run across
    """

    row: dict[str, int]
    across: dict[str, float]
    half: dict[str, Half]
    lanes: dict[Pair, float]
    ports: dict[Pair, float]
    tracks: dict[tuple[int, str], int]

    @property
    def rows(self) -> int:
        return 1 + max(self.row.values(), default=-1)

    @property
    def left(self) -> float:
        return min([self.across[p] - self.half[p].across for p in self.row] + list(self.lanes.values()), default=0.0)

    @property
    def right(self) -> float:
        return max([self.across[p] + self.half[p].across for p in self.row] + list(self.lanes.values()), default=0.0)

    def tracks_above(self, row: int) -> int:
        return 1 + max((track for (channel, _), track in self.tracks.items() if channel == row), default=-1)


def step_of(picture: Picture) -> Step:
    """Lay out one step."""
    rows, half, pairs = rows_of(picture), halves(picture), sorted(lines_within(picture))
    row = {place: index for index, members in enumerate(rows) for place in members}
    across = _across(rows, half, pairs, timed_places(picture))
    lanes = _lanes(row, across, half, pairs)
    ports = _ports(row, across, half, lanes, pairs)
    return Step(row, across, half, lanes, ports, _tracks(row, across, lanes, ports, pairs))


def _across(
    rows: Sequence[list[str]], half: Mapping[str, Half], pairs: Sequence[Pair], timed: set[str]
) -> dict[str, float]:
    """Places side by side, near those they belong to; what goes through time stands on the middle line."""
    near: dict[str, list[str]] = {}
    for source, target in pairs:
        near.setdefault(source, []).append(target)
        near.setdefault(target, []).append(source)
    across = {place: 0.0 for members in rows for place in members}
    for members in rows:
        _spread(members, across, half)
    for sweep in range(12):
        for members in rows if sweep % 2 else reversed(rows):
            if len(members) == 1 and (members[0] in timed or all(len(other) == 1 for other in rows)):
                across[members[0]] = 0.0
                continue
            wish = {
                place: sum(across[other] for other in near.get(place, [place])) / len(near.get(place, [place]))
                for place in members
            }
            if sweep < 6:
                members.sort(key=lambda place: wish[place])
            across.update(wish)
            _spread(members, across, half)
    return across


def _spread(members: Sequence[str], across: dict[str, float], half: Mapping[str, Half]) -> None:
    """Push neighbours apart as little as possible: groups that touch move together around their mean wish."""
    groups: list[tuple[list[str], float]] = []  # members, x of the first
    for place in members:
        groups.append(([place], across[place]))
        while len(groups) > 1 and _touch(groups[-2], groups[-1], half):
            joined = groups[-2][0] + groups[-1][0]
            wishes = [across[one] - offset for one, offset in zip(joined, _offsets(joined, half), strict=True)]
            groups[-2:] = [(joined, sum(wishes) / len(wishes))]
    for group, start in groups:
        for place, offset in zip(group, _offsets(group, half), strict=True):
            across[place] = start + offset


def _offsets(group: Sequence[str], half: Mapping[str, Half]) -> list[float]:
    """From the first member's centre to each, side by side."""
    offsets = [0.0]
    for one, other in pairwise(group):
        offsets.append(offsets[-1] + half[one].across + half[other].across + APART)
    return offsets


def _touch(left: tuple[list[str], float], right: tuple[list[str], float], half: Mapping[str, Half]) -> bool:
    return left[1] + _offsets([*left[0], right[0][0]], half)[-1] > right[1]


def _lanes(
    row: Mapping[str, int], across: Mapping[str, float], half: Mapping[str, Half], pairs: Sequence[Pair]
) -> dict[Pair, float]:
    """For each line that skips rows the nearest x at which nothing stands in its way; short ones choose first."""
    lanes: dict[Pair, float] = {}
    long = [pair for pair in pairs if abs(row[pair[1]] - row[pair[0]]) > 1]
    for pair in sorted(long, key=lambda pair: (abs(row[pair[1]] - row[pair[0]]), pair)):
        low, high = sorted((row[pair[0]], row[pair[1]]))
        blocked = [
            (across[place] - half[place].across - LANE, across[place] + half[place].across + LANE)
            for place in row
            if low < row[place] < high
        ]
        for other, lane in lanes.items():
            first, last = sorted((row[other[0]], row[other[1]]))
            if other[0] != pair[0] and first < high and low < last:
                blocked.append((lane - LANE, lane + LANE))
        ends = [across[pair[0]], across[pair[1]]]
        tight = [(left + LANE / 2, right - LANE / 2) for left, right in blocked]  # rather close than with a kink
        free = [x for x in ends if not _within(x, tight)]
        free += [x for span in blocked for x in span if not _within(x, blocked)]
        lanes[pair] = min(free, key=lambda x: (round(abs(x - ends[0]) + abs(x - ends[1]), 3), abs(x - ends[0]), x))
    return lanes


def _within(x: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(low < x < high for low, high in spans)


def _ports(
    row: Mapping[str, int],
    across: Mapping[str, float],
    half: Mapping[str, Half],
    lanes: Mapping[Pair, float],
    pairs: Sequence[Pair],
) -> dict[Pair, float]:
    """Arrowheads side by side: straight above where a line comes from if free, else on the side it comes from."""
    ports: dict[Pair, float] = {}
    for target in across:
        for below in (True, False):
            reading = [pair for pair in pairs if pair[1] == target and (row[pair[0]] < row[target]) == below]
            come = {pair: lanes.get(pair, across[pair[0]]) - across[target] for pair in reading}
            leaves = any(source == target and (row[reader] < row[target]) == below for source, reader in pairs)
            found = _offsets_at(come, half[target].across, leaves=leaves)
            ports |= {pair: across[target] + offset for pair, offset in found.items()}
    return ports


def _offsets_at(come: Mapping[Pair, float], half: float, *, leaves: bool) -> dict[Pair, float]:
    """From a spot's middle to each of its arrowheads; the middle is taken where a line leaves on that side."""
    order = sorted(come, key=lambda pair: (come[pair], pair))
    straight = {
        pair: come[pair]
        for pair in order
        if abs(come[pair]) <= 0.7 * half and not (leaves and abs(come[pair]) < PORT * 0.75)
    }
    found = _beside(straight, order, come, half, leaves=leaves)
    return (
        found if _apart(straight.values()) and _apart(found.values()) else _beside({}, order, come, half, leaves=leaves)
    )


def _apart(offsets: Iterable[float]) -> bool:
    return all(b - a >= PORT * 0.75 for a, b in pairwise(sorted(offsets)))


def _beside(
    straight: Mapping[Pair, float], order: Sequence[Pair], come: Mapping[Pair, float], half: float, *, leaves: bool
) -> dict[Pair, float]:
    """Arrowheads beside those that come straight, on the side from which each comes."""
    found = dict(straight)
    if len(order) == 1 and not leaves:
        return {order[0]: found.get(order[0], 0.0)}
    for side in (-1, 1):
        rest = [pair for pair in order if pair not in found and (come[pair] > 0) == (side > 0)]
        rest.sort(key=lambda pair: abs(come[pair]))
        taken = [abs(offset) for offset in found.values() if offset * side > 0 or offset == 0]
        first = max(taken, default=0.0 if found or leaves else -PORT / 2)
        room = min(PORT, (0.9 * half - first) / max(1, len(rest)))
        for place, pair in enumerate(rest, start=1):
            found[pair] = side * (first + place * room)
    return found


def _tracks(
    row: Mapping[str, int],
    across: Mapping[str, float],
    lanes: Mapping[Pair, float],
    ports: Mapping[Pair, float],
    pairs: Sequence[Pair],
) -> dict[tuple[int, str], int]:
    """Who runs across where, channel by channel."""
    found: dict[tuple[int, str], int] = {}
    for channel in range(max(row.values(), default=0)):
        turns = [turn for pair in pairs for turn in turns_of(pair, row, across, lanes, ports) if turn[0] == channel]
        spans: dict[str, tuple[float, float]] = {}
        for _, source, start, end in turns:
            if start != end:
                low, high = spans.get(source, (start, start))
                spans[source] = (min(low, start, end), max(high, start, end))
        below = [
            (one, other)
            for _, one, start, _ in turns
            for _, other, _, end in turns
            if one != other and one in spans and other in spans and abs(start - end) < 4
        ]
        found |= {(channel, source): track for source, track in tracks(spans, below).items()}
    return found


def turns_of(
    pair: Pair,
    row: Mapping[str, int],
    across: Mapping[str, float],
    lanes: Mapping[Pair, float],
    ports: Mapping[Pair, float],
) -> list[tuple[int, str, float, float]]:
    """Where a line runs across: the channel, its source, from which x to which."""
    source, target = pair
    if row[target] < row[source]:  # a target above what reads it: the line goes down
        low, high = row[target], row[source]
        start, end = ports[pair], across[source]
    else:
        low, high = row[source], row[target]
        start, end = across[source], ports[pair]
    if pair not in lanes:
        return [(low, source, start, end)]
    return [(low, source, start, lanes[pair]), (high - 1, source, lanes[pair], end)]
