"""How time is taken: contestants in turns. Knows nothing of cells or tables.

Contestants take turns within each round, in an order that rotates, so that whatever slows the machine down for a while
hits all of them. Every turn begins with a pause, in which the threads of the one before go to sleep: OpenMP's go on
looking for work for milliseconds, and would take a core from another library's. A turn of short calls has several, the
first of which only wakes threads up. Figures are medians; ratios are taken within rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.tasks import Task

Clock = Callable[[Task], float]  # the seconds of one call

PAUSE_SECONDS = 0.015
SHORT_SECONDS = 0.005  # calls below it are repeated within a turn
TURN_SECONDS = 0.01
FEWEST_ROUNDS = 3
IN_A_ROW = 5  # calls on a GPU that are timed together


@dataclass(frozen=True)
class Settings:
    """rounds    how often each contestant takes its turn, at most
    seconds   after so many no further round of a case begins, once there were `FEWEST_ROUNDS`
    """

    rounds: int = 20
    seconds: float = 1.5

    def goes_on(self, done: int, since: float) -> bool:
        """Whether a case gets another round, that began at `since` and has had so many."""
        if done >= self.rounds:
            return False
        return done < FEWEST_ROUNDS or time.perf_counter() - since < self.seconds


@dataclass(frozen=True)
class Ratio:
    """A quotient: the median over rounds, and the quartiles around it."""

    median: float
    low: float
    high: float


def times(tasks: Mapping[str, Task], settings: Settings, clock: Clock | None = None) -> dict[str, list[float]]:
    """The seconds of each contestant in each round; what is built at a first call must have been built before.

    clock   `seconds_of` by default
    """
    players = {name: _Player(task, clock or seconds_of) for name, task in tasks.items()}
    names = list(tasks)
    found: dict[str, list[float]] = {name: [] for name in names}
    done, since = 0, time.perf_counter()
    while settings.goes_on(done, since):
        start = done % len(names)
        for name in names[start:] + names[:start]:
            found[name].append(players[name].turn())
        done += 1
    return found


class _Player:
    """A contestant between its turns.

    fastest   seconds of its fastest call so far, which says whether calls are short: any one may have been disturbed
    """

    def __init__(self, task: Task, clock: Clock) -> None:
        self.task, self.clock = task, clock
        self.fastest = math.inf

    def turn(self) -> float:
        time.sleep(PAUSE_SECONDS)
        first = self._call()
        if self.fastest > SHORT_SECONDS:
            return first
        calls: list[float] = []
        while sum(calls) < TURN_SECONDS:
            calls.append(self._call())
        return statistics.median(calls)

    def _call(self) -> float:
        seconds = self.clock(self.task)
        self.fastest = min(self.fastest, seconds)
        return seconds


def seconds_of(task: Task) -> float:
    """Of one call."""
    task.clear()
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def device_seconds_of(task: Task) -> float:
    """Of one call on a GPU among several in a row, between two events on its stream.

    As in training, the host prepares a call while the GPU computes the one before: the slower of both is what is timed.
    """
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    task.clear()
    task()  # the GPU is at work when the first call that counts begins
    start.record()
    for _ in range(IN_A_ROW):
        task.clear()
        task()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / IN_A_ROW


def host_seconds_of(task: Task) -> float:
    """Of one call on a GPU until the host is free again; the GPU may compute on."""
    torch.cuda.synchronize()
    return seconds_of(task)


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """above / below, round by round."""
    values = [a / b for a, b in zip(above, below, strict=True)]
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(middle, low, high)
