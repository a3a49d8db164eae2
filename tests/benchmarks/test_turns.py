"""Contestants are timed in turns, within a number of seconds, and compared within rounds."""

from __future__ import annotations

import pytest

from benchmarks import turns
from benchmarks.turns import Ratio, Settings, ratio, times
from tests.benchmarks.made import Calling


class Clock:
    """Time passes where a task sleeps, and nowhere else, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    return clock


def test_contestants_take_turns_in_an_order_that_rotates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SHORT_SECONDS", 0)  # a call each
    order: list[str] = []
    tasks = {name: Calling(lambda name=name: order.append(name)) for name in "ab"}
    found = times(tasks, Settings(rounds=3))
    assert "".join(order) == "ab" + "ba" + "ab"
    assert [len(seconds) for seconds in found.values()] == [3, 3]


def test_short_calls_are_repeated_within_a_turn_and_the_first_is_left_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.004)
    calls: list[int] = []

    def slow_at_first() -> None:
        calls.append(1)
        clock.sleep(0.05 if len(calls) < 2 else 0.001)

    (seconds,) = times({"a": Calling(slow_at_first)}, Settings(rounds=2))["a"][1:]
    assert len(calls) > 4
    assert seconds == pytest.approx(0.001)


def test_long_cases_get_fewer_rounds_but_three(clock: Clock) -> None:
    task = Calling(lambda: clock.sleep(0.006))
    assert len(times({"a": task}, Settings(rounds=50, seconds=0.001))["a"]) == 3
    assert 3 < len(times({"a": task}, Settings(rounds=50, seconds=0.06))["a"]) < 50
    assert len(times({"a": task}, Settings(rounds=2, seconds=9))["a"]) == 2


def test_ratio_is_taken_within_rounds() -> None:
    assert ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0]) == Ratio(median=2.0, low=2.0, high=2.5)
    assert ratio([3.0], [2.0]) == Ratio(1.5, 1.5, 1.5)
