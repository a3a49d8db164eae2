"""Columns and times as people write them."""

from __future__ import annotations

import pytest

from leporello.cli.columns import aligned, duration, number


def test_chinese_letters_take_two_columns() -> None:
    first, second = aligned([["红楼梦", "1"], ["abcdefg", "10"]]).splitlines()
    assert first == "红楼梦    1"
    assert second == "abcdefg  10"


def test_columns_to_the_left_end_without_blanks() -> None:
    assert aligned([["a", "long"], ["bb", "x"]], left=(0, 1)) == "a   long\nbb  x"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"), (90061, "25 h 01 min")],
)
def test_a_time_is_told_in_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_what_is_not_known_is_a_dash() -> None:
    assert (number(None, ".3f"), number(0.0, ".1f")) == ("-", "0.0")
