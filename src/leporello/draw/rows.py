"""Rows: which layer of the step each place belongs to, from the bottom up.

Knows the lines within a step; a place that a line leaves or enters through time has its row to itself, so that the line
meets nobody on its way to the next column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

from leporello.draw.picture import Picture

Pairs = set[tuple[str, str]]
MOVABLE = 6  # rows whose every order is tried


def places_of(picture: Picture) -> list[str]:
    """The values of a step, each once, in the order in which a whole step has them."""
    whole = sorted(picture.spots, key=lambda spot: spot.dashed)
    return list(dict.fromkeys(spot.place for spot in whole))


def lines_within(picture: Picture) -> Pairs:
    """Which place leads to which within a step."""
    spots = {spot.id: spot for spot in picture.spots}
    return {
        (spots[line.source].place, spots[line.target].place)
        for line in picture.lines
        if line.kind == "forward"
        and not line.delay
        and spots[line.source].column == spots[line.target].column
        and line.source != line.target
    }


def lines_through_time(picture: Picture) -> Pairs:
    """Which place leads to which in a later or an earlier step."""
    spots = {spot.id: spot for spot in picture.spots}
    found = set()
    for line in picture.lines:
        source, target = spots[line.source], spots[line.target]
        if line.kind == "forward" and (line.delay or source.column != target.column):
            found.add((source.place, target.place))
    return found


def timed_places(picture: Picture) -> set[str]:
    """Places that lines leave or enter through time."""
    return {place for pair in lines_through_time(picture) for place in pair}


def rows_of(picture: Picture) -> list[list[str]]:
    """The rows of a step from the bottom, each with its places."""
    places, pairs = places_of(picture), lines_within(picture)
    above = {spot.place for spot in picture.spots if spot.above}
    layer = _layers([place for place in places if place not in above], pairs)
    for place in [place for place in places if place in above]:
        reading = [layer[target] for source, target in pairs if source == place and target in layer]
        layer[place] = 1 + max(reading, default=max(layer.values(), default=0))
    rows = _alone(places, layer, timed_places(picture))
    return _reordered(rows, pairs, lines_through_time(picture), above)


def _layers(places: Sequence[str], pairs: Pairs) -> dict[str, int]:
    """The longest way from the bottom; what nothing leads to stands right below what reads it."""
    known = set(places)
    pairs = {(source, target) for source, target in pairs if source in known and target in known}
    before: dict[str, list[str]] = {place: [] for place in places}
    after: dict[str, list[str]] = {place: [] for place in places}
    for source, target in sorted(pairs):
        before[target].append(source)
        after[source].append(target)
    layer: dict[str, int] = {}
    waiting = {place: len(before[place]) for place in places}
    ready = [place for place in places if not waiting[place]]
    while ready:
        place = ready.pop()
        layer[place] = 1 + max((layer[source] for source in before[place]), default=-1)
        for target in after[place]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for place in places:
        layer.setdefault(place, 0)  # on a cycle within a step, which no loop has
    for place in places:
        if not before[place] and after[place]:
            layer[place] = min(layer[target] for target in after[place]) - 1
    return layer


def _alone(places: Sequence[str], layer: Mapping[str, int], timed: set[str]) -> list[list[str]]:
    rows = []
    for height in sorted(set(layer.values())):
        members = [place for place in places if layer[place] == height]
        shared = [place for place in members if place not in timed]
        rows += [shared] if shared else []
        rows += [[place] for place in members if place in timed]
    return rows


def _reordered(rows: list[list[str]], pairs: Pairs, timed: Pairs, above: set[str]) -> list[list[str]]:
    """The rows in the order with the fewest crossings, if that is fewer than they have as layers.

    A state that is handed to its own next step is a barrier across all columns: lines that pass its row cross it.
    """
    fixed = [row for row in rows if any(place in above for place in row)]
    reached = {target for _, target in pairs}
    inputs = [row for row in rows if row not in fixed and not any(place in reached for place in row)]
    free = [row for row in rows if row not in fixed and row not in inputs]
    if not 2 <= len(free) <= MOVABLE or any(len(row) > 1 for row in free):
        return rows
    ways = [[*inputs, *order, *fixed] for order in permutations(free)]
    best = min(ways, key=lambda way: _against(way, pairs, timed))
    return best if _against(best, pairs, timed) < _against(rows, pairs, timed) - 0.9 else rows


def _against(rows: list[list[str]], pairs: Pairs, timed: Pairs) -> float:
    """What speaks against an order: crossings, lines that go down, long lines."""
    row = {place: index for index, members in enumerate(rows) for place in members}
    barriers = {row[source] for source, target in timed if row[source] == row[target]}
    cost = 0.0
    for source, target in [*pairs, *timed]:
        low, high = sorted((row[source], row[target]))
        cost += sum(low < barrier < high for barrier in barriers) + 0.1 * (high - low)
    return cost + 0.6 * sum(row[target] < row[source] for source, target in pairs)
