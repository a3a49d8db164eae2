"""Text coloured by surprise: widths, breaks, marks, legend, and what is shown for what has no shape."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from leporello.errors import ArgumentError, LeporelloError
from leporello.language.report.surprise_heatmap import (
    LEVELS,
    NOT_AT_LINE_START,
    coloured_html,
    coloured_text,
    glyphs,
    is_plain,
    legend,
    level_of,
    lines,
    visible_character,
)

POEM = list("床前明月光，疑是地上霜。举头望明月，低头思故乡。")
texts = st.lists(st.text(max_size=6), max_size=40)


def written(pieces: list[str], width: int) -> list[str]:
    return ["".join(glyph.text for glyph in line) for line in lines(pieces, width)]


@given(texts, st.integers(6, 40))
def test_no_line_is_wider_than_it_may_be(pieces: list[str], width: int) -> None:
    for line in lines(pieces, width):
        widest = max(glyph.width for glyph in line)  # <10FFFF> is 8 columns wide
        assert cell_len("".join(glyph.text for glyph in line)) <= max(width, widest)


@given(texts, st.integers(2, 40))
def test_every_glyph_stands_once_and_in_order(pieces: list[str], width: int) -> None:
    assert [glyph for line in lines(pieces, width) for glyph in line] == list(glyphs(pieces))


@given(texts)
def test_lines_hold_nothing_that_moves_the_cursor(pieces: list[str]) -> None:
    text = coloured_text(pieces, [2.0] * len(pieces), 20).plain.replace("\n", "")
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def test_chinese_takes_two_columns() -> None:
    assert written(POEM[:6], 6) == ["床前明", "月光，"]
    assert written(POEM[:6], 7) == ["床前明", "月光，"]


def test_no_line_begins_with_a_closing_sign() -> None:
    for width in range(6, 30):
        assert not any(line[0] in NOT_AT_LINE_START for line in written(POEM, width))


def test_words_stay_whole_where_they_fit() -> None:
    assert written(list("one two three"), 8) == ["one two ", "three"]


def test_a_word_wider_than_the_line_is_cut() -> None:
    assert written(["abcdefgh"], 3) == ["abc", "def", "gh"]


def test_a_newline_is_shown_and_ends_the_line() -> None:
    assert written(["a\nb", "\n", "c"], 9) == ["a⏎", "b⏎", "c"]


@pytest.mark.parametrize(
    ("character", "sign"),
    [("\t", "→"), ("\r", "␍"), ("\x1b", "␛"), ("\u202e", "<202E>"), ("\x85", "<0085>"), ("光", "光")],
)
def test_what_has_no_shape_gets_one(character: str, sign: str) -> None:
    assert visible_character(character) == sign


def test_a_mark_that_combines_stays_with_its_letter_or_gets_a_circle() -> None:
    assert [glyph.text for glyph in glyphs(["e\u0301", "\u0301"])] == ["e\u0301", "◌\u0301"]


def test_marks_stand_below_what_surprised_where_there_are_no_colours() -> None:
    told = coloured_text(["明", "月", "a", "b"], [None, 9.0, 0.2, 4.0], plain=True)
    assert told.plain == "明月ab\n  ## +"
    assert not told.spans


def test_a_line_without_surprise_has_no_marks() -> None:
    assert coloured_text(["a", "\n", "b"], [0.1, 0.1, 0.1], plain=True).plain == "a⏎\nb"


def test_a_token_stands_on_the_ground_of_its_level() -> None:
    text = coloured_text(["ab", "c", "d"], [9.0, 0.5, float("inf")])
    assert [(text.plain[span.start : span.end], str(span.style)) for span in text.spans] == [
        ("ab", LEVELS[4].style),
        ("d", LEVELS[5].style),
    ]


@pytest.mark.parametrize(
    ("bits", "least"), [(0, 0), (-1e-9, 0), (0.99, 0), (1, 1), (3.9, 2), (4, 4), (15.9, 8), (1e9, 16)]
)
def test_levels_begin_where_they_say(bits: float, least: float) -> None:
    level = level_of(bits)
    assert level is not None
    assert level.least == least


@pytest.mark.parametrize("bits", [None, float("nan")])
def test_what_was_not_predicted_has_no_level(bits: float | None) -> None:
    assert level_of(bits) is None
    assert str(coloured_text(["a"], [bits]).spans[0].style) == "dim"


def test_the_legend_names_every_level() -> None:
    assert legend().plain == "bits  0-1  1-2  2-4  4-8  8-16  16 or more "
    assert [str(span.style) for span in legend().spans] == [level.style for level in LEVELS if level.style]
    assert all(level.mark in legend(plain=True).plain for level in LEVELS)


def test_colours_reach_a_terminal_and_none_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    visible_character = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor")
    assert not is_plain(visible_character)
    assert is_plain(Console(file=io.StringIO(), color_system=None))
    monkeypatch.setenv("NO_COLOR", "1")
    assert is_plain(Console(file=io.StringIO(), force_terminal=True, color_system="truecolor"))


@pytest.mark.parametrize("level", [level for level in LEVELS if level.ground])
def test_letters_stand_out_from_their_ground(level) -> None:
    assert _contrast(level.ink, level.ground) > 4.5


@pytest.mark.parametrize("level", [level for level in LEVELS if level.ink and not level.ground])
@pytest.mark.parametrize("ground", ["#ffffff", "#000000"])
def test_letters_without_a_ground_can_be_read_on_dark_and_light(level, ground: str) -> None:
    assert _contrast(level.ink, ground) > 3


def _contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 defines it."""

    def brightness(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)


def test_a_page_tells_the_bits_of_each_token_and_escapes_its_text() -> None:
    page = coloured_html(["<b>", "\n", "光"], [None, 0.5, 12.0])
    assert '<span class="unknown">&lt;b&gt;</span>' in page
    assert '<span class="l0" title="0.50 bits">⏎\n</span>' in page
    assert '<span class="l4" title="12.00 bits">光</span>' in page
    assert all(span in page for span in ("0-1", "8-16", "16 or more"))


def test_surprises_may_be_a_tensor() -> None:
    assert coloured_text(["a", "b"], torch.tensor([0.0, 5.0]), plain=True).plain == "ab\n +"


def test_another_number_of_surprises_is_refused() -> None:
    with pytest.raises(ArgumentError, match="not one surprise for each piece"):
        coloured_text(["a", "b"], [1.0])


@pytest.mark.parametrize("width", [1, 0, -3, 2.5, True])
def test_what_is_no_width_is_refused(width: int) -> None:
    with pytest.raises(ArgumentError, match="no width"):
        coloured_text(["a"], [1.0], width)


def test_without_rich_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.text", None)
    with pytest.raises(LeporelloError, match="needs the package rich"):
        coloured_text(["a"], [1.0])
    assert "l1" in coloured_html(["a"], [1.0])


def test_an_empty_text_is_empty() -> None:
    assert coloured_text([], []).plain == ""
