"""Curves of runs: what is drawn, and what is left out."""

from __future__ import annotations

import itertools
import math
import sys

import pytest

from leporello.errors import LeporelloError
from leporello.language.ngrams.baseline import Row
from leporello.language.report.curves import (
    MAX_POINTS,
    MIN_NAME_DISTANCE,
    _averaged,
    _spread,
    compare_png,
    compare_svg,
    curve_svg,
)

MODELS = [Row("uniform", 65.0), Row("2-gram", 12.5, order=2), Row("3-gram", 12.4, order=3)]


def line(kind: str, epoch: float, perplexity: float, **more: float) -> dict[str, object]:
    return {"kind": kind, "epoch": epoch, "tokens": 1000 * epoch, "perplexity": perplexity, **more}


METRICS = [
    line("train", 0.5, 31.0, gradient_norm=0.4, rate=0.004),
    line("validation", 1.0, 22.0),
    line("train", 1.5, 17.0, gradient_norm=0.3, rate=0.002),
    line("validation", 2.0, 15.25),
    {"kind": "sample", "epoch": 2.0, "text": "x"},
]


def words(svg: bytes) -> list[str]:
    """What is written in a picture: letters are shapes there, with the words in a remark."""
    return [text.split("-->")[0].strip() for text in svg.decode().split("<!--")[1:]]


def test_a_curve_names_every_model_with_its_perplexity_and_the_best_of_the_network() -> None:
    found = words(curve_svg(METRICS, MODELS, "a title"))
    assert {"uniform  65.00", "2-gram  12.50", "3-gram  12.40", "network  15.25", "a title", "epochs"} <= set(found)


def test_the_same_run_gives_the_same_bytes() -> None:
    assert curve_svg(METRICS, MODELS, "a") == curve_svg(METRICS, MODELS, "a")


def test_letters_without_a_shape_in_the_font_become_dots_and_formulas_stay_text() -> None:
    found = words(curve_svg(METRICS, [], "红楼梦.txt: $x_1$ Война"))
    assert "….txt: $x_1$ Война" in found


def test_what_is_not_finite_or_not_there_is_left_out() -> None:
    strange = [*METRICS, line("train", 3, math.inf), line("validation", 3, math.nan)]
    assert words(curve_svg(strange, [*MODELS, Row("4-gram", math.inf)], "a")) == words(curve_svg(METRICS, MODELS, "a"))


def test_a_run_without_any_line_has_a_picture_too() -> None:
    assert curve_svg([], [], "nothing").startswith(b"<?xml")


def test_less_than_an_epoch_is_counted_in_tokens() -> None:
    short = [line("train", 0.1, 31.0, gradient_norm=0.4, rate=0.004), line("train", 0.2, 30.0)]
    found = words(curve_svg(short, [], "a"))
    assert "tokens" in found
    assert "epochs" not in found


def test_many_points_are_averaged_by_their_logarithm() -> None:
    found = _averaged([(float(index), 4.0 if index % 2 else 16.0) for index in range(2 * MAX_POINTS)])
    assert len(found) == MAX_POINTS
    assert found[0] == pytest.approx((0.5, 8.0))
    assert _averaged([(1.0, 3.0)]) == [pytest.approx((1.0, 3.0))]


def test_names_that_would_meet_are_moved_apart_and_others_stay() -> None:
    places = _spread([0.1, 0.5, 0.51, 0.52, 0.9])
    assert [places[0], places[4]] == [0.1, 0.9]
    assert places[2] == pytest.approx(0.51)
    assert all(b - a >= MIN_NAME_DISTANCE - 1e-9 for a, b in itertools.pairwise(places))


def test_several_runs_are_drawn_with_their_names() -> None:
    worse = [{**one, "perplexity": 2 * float(str(one.get("perplexity", 1)))} for one in METRICS]
    found = words(compare_svg({"mine": METRICS, "yours": worse, "empty": []}))
    assert {"mine  15.25", "yours  30.50", "epochs"} <= set(found)
    assert not any("empty" in one for one in found)
    assert compare_png({"mine": METRICS})[1:4] == b"PNG"


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LeporelloError, match=r"leporello\[plots\]"):
        curve_svg(METRICS, MODELS, "a")
