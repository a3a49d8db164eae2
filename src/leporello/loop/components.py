"""Strongly connected components of a directed graph, in topological order (Tarjan 1972, without recursion).

Knows nodes and edges only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Point = TypeVar("Point", bound=Hashable)


def components(points: Iterable[Point], before: Mapping[Point, Iterable[Point]]) -> list[list[Point]]:
    """Parts in which every point reaches every other; a part comes after all it depends on.

    before   for each point, those it depends on
    """
    number: dict[Point, int] = {}
    lowest: dict[Point, int] = {}
    waiting: list[Point] = []
    held: set[Point] = set()
    found: list[list[Point]] = []
    for start in points:
        if start in number:
            continue
        number[start] = lowest[start] = len(number)
        waiting.append(start)
        held.add(start)
        path = [(start, iter(before.get(start, ())))]
        while path:
            point, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    parent = path[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[point])
                if lowest[point] == number[point]:
                    found.append(_popped(waiting, held, point))
            elif following not in number:
                number[following] = lowest[following] = len(number)
                waiting.append(following)
                held.add(following)
                path.append((following, iter(before.get(following, ()))))
            elif following in held:
                lowest[point] = min(lowest[point], number[following])
    return found


def _popped(waiting: list[Point], held: set[Point], last: Point) -> list[Point]:
    part = []
    while True:
        point = waiting.pop()
        held.discard(point)
        part.append(point)
        if point == last:
            return part
