"""Foreign text stays what it is inside Markdown."""

from __future__ import annotations

import pytest

from leporello.language.markdown import fenced, spanned, table, visible


@pytest.mark.parametrize("text", ["", "plain", "```", "a ```` b\n``````", "~~~\n---"])
def test_no_line_of_a_fenced_text_can_end_the_fence(text: str) -> None:
    opening, *inside, closing = fenced(text).split("\n")
    assert opening == f"{closing}text"
    assert all(closing not in line for line in inside)
    assert "\n".join(inside) == text


def test_control_characters_can_be_seen_and_halves_of_characters_can_be_written() -> None:
    assert visible("a\x1b[31m\x00\r\nb\tc\x7f\ud800") == "a␛[31m␀\nb\tc␡?"


def test_a_span_holds_backticks_and_is_one_line() -> None:
    assert spanned("a`b") == "``a`b``"
    assert spanned("`x`") == "`` `x` ``"
    assert spanned("two\nlines") == "`two␊lines`"


def test_a_cell_of_a_table_ends_where_it_should() -> None:
    assert table({"text": spanned("a|b")}).splitlines()[-1] == r"| text | `a\|b` |"
