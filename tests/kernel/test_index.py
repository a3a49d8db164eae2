"""Positions in memory: splitting one into axes and putting it together again gives the same position."""

from __future__ import annotations

import itertools
import math

import pytest

from leporello.kernel.index import Index, Quotient, Variable, loop_variables, row_major, split_row_major


def at(index: Index, variables: dict[str, int]) -> int:
    """The slow twin: plain numbers."""
    total = index.const
    for variable, factor in index.terms:
        if isinstance(variable, str):
            value = variables[variable]
        else:
            inner = at(variable.index, variables)
            assert inner >= 0, "C and Python round negative quotients apart"
            value = inner // variable.size if isinstance(variable, Quotient) else inner % variable.size
        total += factor * value
    return total


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(
    ("loops", "sizes"),
    [
        ((6,), (2, 3)),
        ((2, 3), (6,)),
        ((2, 3), (3, 2)),
        ((4, 3), (2, 3, 2)),
        ((1, 5), (5, 1)),
        ((), ()),
        ((63,), (7, 9)),
    ],
)
def test_a_position_split_into_axes_is_the_same_position(
    loops: tuple[int, ...], sizes: tuple[int, ...], flipped: bool
) -> None:
    ranges: dict[Variable, int] = {f"i{axis}": size for axis, size in enumerate(loops)}
    position = row_major(loop_variables(loops), loops)
    if flipped:
        position = position.times(-1).plus(Index(math.prod(loops) - 1))
    indices = split_row_major(position, sizes, ranges)
    assert len(indices) == len(sizes)
    for numbers in itertools.product(*map(range, loops)):
        variables = {f"i{axis}": number for axis, number in enumerate(numbers)}
        along = [at(index, variables) for index in indices]
        assert all(0 <= one < size for one, size in zip(along, sizes, strict=True))
        assert at(row_major([Index(one) for one in along], sizes), {}) == at(position, variables)


def test_positions_stay_affine_where_the_sizes_allow_it() -> None:
    indices = split_row_major(row_major(loop_variables((4, 6)), (4, 6)), (4, 2, 3), {"i0": 4, "i1": 6})
    assert [str(index) for index in indices] == ["i0", "((i1) / 3)", "((i1) % 3)"]
    assert [str(index) for index in split_row_major(Index(7), (2, 5), {})] == ["1", "2"]


def test_sums_of_indices_have_one_term_for_each_variable() -> None:
    i, k = Index.variable("i0"), Index.variable("k0")
    assert i.times(3).plus(k).plus(i.times(-3)) == k
    assert str(k.times(-2).plus(i).plus(Index(-1))) == "i0 - 2 * k0 - 1"
