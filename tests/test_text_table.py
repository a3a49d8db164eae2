"""Tables that line up whatever the letters are, and times as people write them."""

from __future__ import annotations

import pytest

from leporello.text_table import format_long_time, format_optional, html_table, markdown_table, plain_table


def test_chinese_letters_take_two_columns() -> None:
    first, second = plain_table([["红楼梦", "1"], ["abcdefg", "10"]]).splitlines()
    assert first == "红楼梦    1"
    assert second == "abcdefg  10"


def test_columns_to_the_left_end_without_blanks() -> None:
    assert plain_table([["a", "long"], ["bb", "x"]], left=(0, 1)) == "a   long\nbb  x"


def test_an_indent_stands_before_every_line() -> None:
    assert plain_table([["", "b"], ["a", "1"]], indent=2) == "     b\n  a  1"


def test_a_markdown_table_may_have_no_heads() -> None:
    table = markdown_table(["", ""], [["cell", "`a|b`"], ["two", "lines\nof text"]], left=(0, 1))
    assert table.splitlines() == ["| | |", "|:---|:---|", "| cell | `a\\|b` |", "| two | lines of text |"]


def test_html_is_escaped() -> None:
    assert "&lt;b&gt;" in html_table(["<b>"], [["a & b"]])
    assert "a &amp; b" in html_table(["<b>"], [["a & b"]])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"), (90061, "25 h 01 min")],
)
def test_a_long_time_has_two_units(seconds: float, words: str) -> None:
    assert format_long_time(seconds) == words


def test_a_missing_number_is_a_dash() -> None:
    assert (format_optional(None, ".3f"), format_optional(0.0, ".1f")) == ("-", "0.0")
