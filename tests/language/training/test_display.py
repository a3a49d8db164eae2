"""How a training looks: on 80 columns, numbers below each other, and a time left that one can believe."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from leporello.language.config import Config
from leporello.language.training.display import JsonLines, NoDisplay, ProgressBar, rank_among
from leporello.language.training.progress import RemainingTime

KNOWN = [("uniform", 65.0), ("1-gram", 20.0), ("2-gram", 9.0), ("3-gram", 6.0), ("4-gram", 6.5)]
PLACE = {"update": 100, "epoch": 12.34, "tokens": 409_600, "seconds": 31.0}


def train(**numbers: float) -> dict[str, Any]:
    found = {"loss": 2.31, "perplexity": 10.07, "bits_per_character": 3.333, "gradient_norm": 0.71, "clipped": 0.02,
             "rate": 0.004, "tokens_per_second": 131_072.0}  # fmt: skip
    return {"kind": "train", **PLACE, **found, **numbers}


def validation(perplexity: float, **numbers: Any) -> dict[str, Any]:
    bits = math.log2(perplexity)
    found = {"loss": math.log(perplexity), "perplexity": perplexity, "bits_per_character": bits, "unknown": 0.0}
    return {"kind": "validation", **PLACE, **found, "best": True, **numbers}


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"perplexity": 65.01, "clipped": 1.0, "tokens_per_second": 2_345_678.0},
        {"perplexity": 123_456.7, "gradient_norm": 4321.9},
    ],
)
def test_numbers_fit_on_a_line_of_80_columns(numbers: dict[str, float]):
    bar = ProgressBar(Config(epochs=20), KNOWN)
    bar.show(train(**numbers))
    assert len(bar.numbers.plain) <= 80
    assert "perplexity" in bar.numbers.plain
    assert "tokens/s" in bar.numbers.plain


def test_validations_stand_below_each_other_on_80_columns(capsys: pytest.CaptureFixture[str]):
    bar = ProgressBar(Config(epochs=20), KNOWN)
    for perplexity in (12_345.678, 64.0, 6.25, 1.5):
        bar.show(validation(perplexity, epoch=123.45))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # none is broken
    assert max(map(len, lines)) <= 80
    assert len({line.index("bits/char") for line in lines if "12,345" not in line}) == 1
    assert [line.split("  ")[-1] for line in lines] == ["above all", "below uniform", "below 4-gram", "below 3-gram"]


def test_beside_nothing_nothing_is_said():
    assert rank_among(7.0, KNOWN) == "below 2-gram"
    assert rank_among(99.0, KNOWN) == "above all"


def left(config: Config, *events: tuple[float, float]) -> list[tuple[float, float | None]]:
    """What is done and left after events at so many seconds and epochs."""
    found = RemainingTime()
    return [found.after({"seconds": seconds, "epoch": epoch}, config) for seconds, epoch in events]


def test_minutes_are_counted_down_by_the_clock():
    assert left(Config(minutes=2), (30.0, 0.1), (90.0, 5.0)) == [(0.25, 90.0), (0.75, 30.0)]


def test_epochs_end_at_the_speed_since_all_was_ready():
    assert left(Config(epochs=10), (20.0, 1.0), (30.0, 2.0), (40.0, 4.0), (70.0, 10.0)) == [
        (0.1, None),
        (0.2, pytest.approx(80.0)),
        (0.4, pytest.approx(40.0)),
        (1.0, 0.0),
    ]


def test_of_minutes_and_epochs_what_comes_first_counts():
    assert left(Config(epochs=10, minutes=1), (10.0, 1.0), (20.0, 2.0))[-1] == (pytest.approx(1 / 3), 40.0)
    assert left(Config(epochs=10, minutes=9), (10.0, 1.0), (20.0, 2.0))[-1] == (0.2, pytest.approx(80.0))


def test_the_bar_says_how_long_it_will_take():
    bar = ProgressBar(Config(minutes=2))
    bar.show(train(seconds=45.0))
    assert bar.bar.tasks[0].fields["left"] == "1:15 left"
    assert bar.bar.tasks[0].completed == pytest.approx(0.375)


def test_lines_are_json_without_infinities(capsys: pytest.CaptureFixture[str]):
    with JsonLines() as view:
        view.show(train(perplexity=math.inf))
    assert json.loads(capsys.readouterr().out)["perplexity"] is None


def test_nothing_shows_nothing(capsys: pytest.CaptureFixture[str]):
    with NoDisplay() as view:
        view.show(train())
    assert capsys.readouterr().out == ""


def test_samples_and_the_end_are_shown(capsys: pytest.CaptureFixture[str]):
    with ProgressBar(Config(epochs=20)) as bar:
        bar.show({"kind": "sample", **PLACE, "text": "\nthe [red]owl[/red] 光\n"})
        bar.show({"kind": "end", **PLACE, "epoch": 20.0, "why": "20 epochs are done", "best": 1.0})
    assert "    the [red]owl[/red] 光" in capsys.readouterr().out
    assert bar.bar.tasks[0].completed == 1.0
