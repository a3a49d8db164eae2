"""Promises are kept or not, over the cases that were measured."""

from __future__ import annotations

import math

import pytest

from benchmarks.cases import Case
from benchmarks.record import Measurement, Promise, Suite, summaries
from benchmarks.sizes import Size
from benchmarks.turns import Ratio

CASES = tuple(Case(cell, Size(1, 1, 1, 1)) for cell in ("RNN", "GRU", "LSTM"))
FASTER = ("ratio", "a over b")


def measured(*values: float | None) -> list[Measurement]:
    return [
        Measurement(case, failed="refused")
        if value is None
        else Measurement(case, ratios={"a over b": Ratio(value, value, value)})
        for case, value in zip(CASES, values, strict=False)
    ]


def suite_of(*promises: Promise) -> Suite:
    return Suite("made", "made up", CASES, lambda case, settings: Measurement(case), promises)


@pytest.mark.parametrize(("gather", "found"), [("geometric mean", 2.0), ("smallest", 1.0), ("largest", 4.0)], ids=str)
def test_cases_are_gathered(gather: str, found: float) -> None:
    (one,) = summaries(suite_of(Promise("all", *FASTER, gather)), measured(1.0, 2.0, 4.0))
    assert math.isclose(one.found, found)
    assert (one.cases, one.whole, one.met) == (3, 3, None)


def test_limits_belong_to_what_is_promised() -> None:
    promises = [Promise("all", *FASTER, "smallest", least=least) for least in (1.0, 1.01)]
    promises += [Promise("all", *FASTER, "largest", most=most) for most in (2.0, 1.99)]
    assert [one.met for one in summaries(suite_of(*promises), measured(1.0, 2.0))] == [True, False, True, False]


def test_a_summary_tells_how_many_cases_are_missing() -> None:
    (one,) = summaries(suite_of(Promise("all", *FASTER, "smallest", least=1.0)), measured(1.0))
    assert (one.cases, one.whole) == (1, 3)


def test_a_case_that_failed_keeps_no_promise() -> None:
    promises = (Promise("all", *FASTER, "smallest", least=1.0), Promise("all", *FASTER, "smallest"))
    assert [one.met for one in summaries(suite_of(*promises), measured(9.0, None))] == [False, None]
    assert [(one.found, one.met) for one in summaries(suite_of(*promises), measured(None))] == [
        (None, False),
        (None, None),
    ]


def test_a_promise_of_other_cases_is_left_out() -> None:
    promise = Promise("LSTM", *FASTER, "smallest", of=lambda case: case.cell == "LSTM")
    assert summaries(suite_of(promise), measured(1.0, 2.0)) == []
    assert summaries(suite_of(promise), measured(1.0, 2.0, 3.0))[0].found == 3.0
