"""Stacks as numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leporello as lp
from leporello.turing.stack_code import base_of, stack_number, stack_symbols


@given(st.integers(1, 9).flatmap(lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k - 1), max_size=40))))
def test_a_stack_comes_back_from_its_number(drawn: tuple[int, list[int]]) -> None:
    symbols, stack = drawn
    assert stack_symbols(stack_number(stack, base_of(symbols)), base_of(symbols), symbols) == tuple(stack)


@given(st.integers(1, 9).flatmap(lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k - 1), max_size=9))))
def test_the_top_is_read_by_saturated_units(drawn: tuple[int, list[int]]) -> None:
    symbols, stack = drawn
    base = base_of(symbols)
    read = [min(1, max(0, base * stack_number(stack, base) - 2 * place)) for place in range(symbols)]
    assert read == [1 if stack and stack[0] >= place else 0 for place in range(symbols)]


@pytest.mark.parametrize("number", [Fraction(1, 2), Fraction(2, 4), Fraction(1), Fraction(-1, 4), Fraction(1, 3)])
def test_the_gaps_hold_no_stack(number: Fraction) -> None:
    with pytest.raises(lp.errors.ArgumentError, match="no stack"):
        stack_symbols(number, 4, 2)
