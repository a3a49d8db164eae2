"""Strongly connected components against a brute-force twin: who reaches whom, by trying all paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leporello.loop.value_classes import components

points = st.integers(0, 7)
graphs = st.dictionaries(points, st.lists(points, max_size=4))


def reached(graph: dict[int, list[int]], start: int) -> set[int]:
    """All that a point depends on, itself included."""
    found, waiting = {start}, [start]
    while waiting:
        for before in graph.get(waiting.pop(), []):
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


@given(graphs)
def test_points_that_reach_each_other_are_together_and_no_others(graph: dict[int, list[int]]) -> None:
    parts = components(range(8), graph)
    home = {point: index for index, part in enumerate(parts) for point in part}
    for one in range(8):
        for other in range(8):
            mutual = other in reached(graph, one) and one in reached(graph, other)
            assert (home[one] == home[other]) is mutual


@given(graphs)
def test_every_point_is_in_one_part(graph: dict[int, list[int]]) -> None:
    assert sorted(point for part in components(range(8), graph) for point in part) == list(range(8))


@given(graphs)
def test_a_part_comes_after_all_it_depends_on(graph: dict[int, list[int]]) -> None:
    seen: set[int] = set()
    for part in components(range(8), graph):
        seen |= set(part)
        assert all(before in seen for point in part for before in graph.get(point, []))


def test_a_long_chain_needs_no_recursion() -> None:
    parts = components(range(10**5), {point: [point - 1] for point in range(1, 10**5)})
    assert parts == [[point] for point in range(10**5)]


def test_points_that_are_only_depended_on_are_parts_too() -> None:
    assert components(["b"], {"b": ["a"]}) == [["a"], ["b"]]
