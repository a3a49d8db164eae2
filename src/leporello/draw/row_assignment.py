"""Assignment of rows: the layer of each place within a column, counted from the bottom.

A place with lines to or from other columns has its row to itself, so that those lines pass no spot on their way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from leporello.draw.picture import Picture

Pairs = set[tuple[str, str]]
MAX_PERMUTED_ROWS = 6  # up to this number every order of the rows is tried


def places_of(picture: Picture) -> list[str]:
    """The places of a picture, each once, in the order of a complete column (columns of hints may have fewer)."""
    complete_first = sorted(picture.spots, key=lambda spot: spot.dashed)
    return list(dict.fromkeys(spot.place for spot in complete_first))


def lines_within(picture: Picture) -> Pairs:
    """Pairs of places that a line joins within one column."""
    spots = {spot.id: spot for spot in picture.spots}
    return {
        (spots[line.source].place, spots[line.target].place)
        for line in picture.lines
        if line.kind == "forward"
        and not line.delay
        and spots[line.source].column == spots[line.target].column
        and line.source != line.target
    }


def lines_between_columns(picture: Picture) -> Pairs:
    """Pairs of places that a line joins through a delay or from one column to another."""
    spots = {spot.id: spot for spot in picture.spots}
    pairs = set()
    for line in picture.lines:
        source, target = spots[line.source], spots[line.target]
        if line.kind == "forward" and (line.delay or source.column != target.column):
            pairs.add((source.place, target.place))
    return pairs


def timed_places(picture: Picture) -> set[str]:
    """Places at either end of a line between columns."""
    return {place for pair in lines_between_columns(picture) for place in pair}


def assign_rows(picture: Picture) -> list[list[str]]:
    """The rows of a column from the bottom, each with its places; rails below and above all others."""
    rails = {spot.id for spot in picture.spots if spot.rail}
    if rails:
        sources = {line.source for line in picture.lines if line.kind == "forward"}
        rest = replace(
            picture,
            spots=tuple(spot for spot in picture.spots if not spot.rail),
            lines=tuple(line for line in picture.lines if not {line.source, line.target} & rails),
        )
        timed = timed_places(picture)
        below = [spot.place for spot in picture.spots if spot.rail and spot.id in sources]
        above = [spot.place for spot in picture.spots if spot.rail and spot.id not in sources]
        return [*([place] for place in below[::-1]), *_rows(rest, timed), *([place] for place in above)]
    return _rows(picture, timed_places(picture))


def _rows(picture: Picture, timed: set[str]) -> list[list[str]]:
    """The rows of the places that are no rails; those in `timed` have one each."""
    places, pairs = places_of(picture), lines_within(picture)
    above = {spot.place for spot in picture.spots if spot.above}
    layer = _layers([place for place in places if place not in above], pairs)
    for place in [place for place in places if place in above]:
        readers = [layer[target] for source, target in pairs if source == place and target in layer]
        layer[place] = 1 + max(readers, default=max(layer.values(), default=0))
    rows = _split_layers(places, layer, timed)
    return _reordered(rows, pairs, lines_between_columns(picture), above)


def _layers(places: Sequence[str], pairs: Pairs) -> dict[str, int]:
    """The layer of each place: its longest path from the bottom; a place without inputs is right below its readers."""
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
        layer.setdefault(place, 0)  # on a cycle within a column, which no loop has
    for place in places:
        if not before[place] and after[place]:
            layer[place] = min(layer[target] for target in after[place]) - 1
    return layer


def _split_layers(places: Sequence[str], layer: Mapping[str, int], timed: set[str]) -> list[list[str]]:
    """A row for each layer, and one of its own for each place with lines between columns."""
    rows = []
    for height in sorted(set(layer.values())):
        members = [place for place in places if layer[place] == height]
        shared = [place for place in members if place not in timed]
        rows += [shared] if shared else []
        rows += [[place] for place in members if place in timed]
    return rows


def _reordered(rows: list[list[str]], pairs: Pairs, timed: Pairs, above: set[str]) -> list[list[str]]:
    """The rows in the order with the fewest crossings, where it has fewer than the order of layers.

    The line from a state to itself in the next column runs along its row: every line that passes the row crosses it.
    Rows of inputs stay at the bottom, those with places of `above` at the top. The others are permuted if they are few
    and have one place each; else the order of layers stays.
    """
    fixed = [row for row in rows if any(place in above for place in row)]
    reached = {target for _, target in pairs}
    inputs = [row for row in rows if row not in fixed and not any(place in reached for place in row)]
    free = [row for row in rows if row not in fixed and row not in inputs]
    if not 2 <= len(free) <= MAX_PERMUTED_ROWS or any(len(row) > 1 for row in free):
        return rows
    orders = [[*inputs, *order, *fixed] for order in permutations(free)]
    best = min(orders, key=lambda order: _cost(order, pairs, timed))
    return best if _cost(best, pairs, timed) < _cost(rows, pairs, timed) - 0.9 else rows


def _cost(rows: list[list[str]], pairs: Pairs, timed: Pairs) -> float:
    """The cost of an order: crossings, lines that go down, long lines."""
    row = {place: index for index, members in enumerate(rows) for place in members}
    barriers = {row[source] for source, target in timed if row[source] == row[target]}
    cost = 0.0
    for source, target in [*pairs, *timed]:
        low, high = sorted((row[source], row[target]))
        cost += sum(low < barrier < high for barrier in barriers) + 0.1 * (high - low)
    return cost + 0.6 * sum(row[target] < row[source] for source, target in pairs)
