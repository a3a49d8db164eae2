"""Rows of the uniform model and of n-grams, and the tables that show them."""

from __future__ import annotations

import json
import math

import pytest

from leporello.errors import ArgumentError
from leporello.language.model.perplexity import perplexity_of
from leporello.language.ngrams.baseline import Row, as_dicts, as_markdown, as_text, baseline
from leporello.language.ngrams.kneser_ney import KneserNey
from tests.errors.said import said
from tests.language.ngrams.texts import skewed

ROWS = [
    Row("uniform", 66.0, 6.044, seconds=0.0),
    Row("2-gram", 11.98, 3.583, order=2, stored=1445, seconds=0.93),
    Row("7-gram", 4.556, 2.188, order=7, stored=872748, seconds=4.361),
    Row("GRU", 4.1, 2.036, parameters=123456),
]


def test_rows_are_those_of_models_fitted_alone() -> None:
    train, validation = skewed(900, 9), skewed(200, 9, seed=1)
    uniform, *rows = baseline(train, validation, 9, [3, 1], characters=400)
    assert (uniform.name, uniform.order, uniform.stored) == ("uniform", None, None)
    assert uniform.perplexity == pytest.approx(9)
    assert [(row.name, row.order) for row in rows] == [("3-gram", 3), ("1-gram", 1)]
    for row in rows:
        model = KneserNey.fit(train, 9, row.order)
        scores = perplexity_of(model, validation)
        assert row.perplexity == scores.perplexity
        assert row.bits_per_character == scores.bits(400)
        assert row.stored == model.stored
        assert row.seconds > 0


def test_without_characters_there_are_no_bits() -> None:
    rows = baseline(skewed(50, 3), skewed(9, 3), 3, [1])
    assert [row.bits_per_character for row in rows] == [None, None]
    assert "bits" not in as_text(rows)


def test_progress_goes_from_the_first_piece_of_work_to_the_last() -> None:
    told: list[tuple[int, int]] = []
    baseline(skewed(50, 3), skewed(9, 3), 3, [2, 4], progress=lambda done, work: told.append((done, work)))
    assert told == [(done, 7) for done in range(1, 8)]


@pytest.mark.parametrize(("orders", "word"), [([], "none"), ([0, 3], "0"), ([2, -1], "-1")])
def test_orders_that_are_none_are_refused(orders: list[int], word: str) -> None:
    said(ArgumentError, lambda: baseline(skewed(50, 3), skewed(9, 3), 3, orders), "order", word)


def test_a_table_has_aligned_columns_and_marks_the_best_order() -> None:
    assert as_text(ROWS).split("\n") == [
        "model    perplexity  bits per character   counts  parameters  seconds",
        "uniform      66.000               6.044        -           -     0.00",
        "2-gram       11.980               3.583    1,445           -     0.93",
        "7-gram        4.556               2.188  872,748           -     4.36  best order",
        "GRU           4.100               2.036        -     123,456        -",
    ]


def test_a_table_in_markdown_has_the_same_cells_and_the_winner_is_bold() -> None:
    assert as_markdown(ROWS[1:]).split("\n") == [
        "| model | perplexity | bits per character | counts | parameters | seconds |",
        "|:---|---:|---:|---:|---:|---:|",
        "| 2-gram | 11.980 | 3.583 | 1,445 | - | 0.93 |",
        "| 7-gram | 4.556 | 2.188 | 872,748 | - | 4.36 |",
        "| **GRU** | **4.100** | **2.036** | **-** | **123,456** | **-** |",
    ]
    assert as_markdown(ROWS[1:3]).splitlines()[-1].startswith("| **7-gram** |")


def test_a_bar_in_a_name_does_not_part_a_cell_of_markdown() -> None:
    assert as_markdown([Row("a|b", 2.0)]).endswith(r"| a\|b | 2.000 |")


def test_programs_get_every_number() -> None:
    found = json.loads(json.dumps(as_dicts([*ROWS, Row("broken", math.inf)]), allow_nan=False))
    assert found[2] == {
        "name": "7-gram",
        "perplexity": 4.556,
        "bits_per_character": 2.188,
        "order": 7,
        "stored": 872748,
        "parameters": None,
        "seconds": 4.361,
        "best_order": True,
    }
    assert [row["best_order"] for row in found] == [False, False, True, False, False]
    assert found[4]["perplexity"] is None


def test_chinese_names_stay_in_their_columns() -> None:
    heads, first, second = as_text([Row("红楼梦", 8.0), Row("uniform", 9.0)]).split("\n")
    assert (heads, first, second) == ("model    perplexity", "红楼梦        8.000", "uniform       9.000")


def test_large_and_infinite_perplexities_can_be_read() -> None:
    assert as_text([Row("uniform", 10000.0), Row("net", math.inf)]).split("\n")[1:] == [
        "uniform    10,000.0",
        "net             inf",
    ]


def test_of_equal_orders_the_lowest_is_best() -> None:
    rows = [Row("3-gram", 2.0, order=3), Row("2-gram", 2.0, order=2), Row("net", 1.5)]
    assert [row["best_order"] for row in as_dicts(rows)] == [False, True, False]


def test_without_n_grams_nothing_is_marked() -> None:
    assert "best" not in as_text([Row("uniform", 2.0)])
