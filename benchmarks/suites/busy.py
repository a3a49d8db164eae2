"""`busy`: a training step on a machine that others use too, with a busy program on each core, beside a quiet one.

With as many busy programs as cores, a program that uses all cores gets half of their time: twice as long is fair.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cases import Case
from benchmarks.compare import agreed, medians
from benchmarks.contestants import Engine, TorchNN
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.tasks import Task
from benchmarks.turns import Settings, ratio

SIZES = (Size(35, 32, 28, 32), Size(64, 32, 64, 64), Size(128, 32, 128, 128), Size(256, 1, 128, 128))
QUIET_SECONDS, BUSY_SECONDS = 0.3, 0.8  # of one turn; schedulers hand a core on after some milliseconds
SETTLE_SECONDS = 0.1


def measure(case: Case, settings: Settings) -> Measurement:
    """Contestants in turns, each while the other programs sleep and then while they run."""
    tasks = agreed(case, [TorchNN(), Engine("cpu")])
    found: dict[str, list[float]] = {f"{name}, {how}": [] for name in tasks for how in ("quiet", "busy")}
    done, since = 0, time.perf_counter()
    with busy_programs() as programs:
        while settings.goes_on(done, since):
            for name, task in tasks.items():
                found[f"{name}, quiet"].append(mean_seconds(task, QUIET_SECONDS))
                tell(programs, signal.SIGCONT)
                found[f"{name}, busy"].append(mean_seconds(task, BUSY_SECONDS))
                tell(programs, signal.SIGSTOP)
            done += 1
    return Measurement(
        case,
        figures={"milliseconds": medians(found, 1e3)},
        ratios={f"{name}, busy over quiet": ratio(found[f"{name}, busy"], found[f"{name}, quiet"]) for name in tasks},
        rounds=done,
    )


def mean_seconds(task: Task, seconds: float) -> float:
    """Of the calls within so many seconds; a mean, since a few calls are hit much harder than the others."""
    for _ in timed_out(SETTLE_SECONDS):
        task.clear()
        task()
    calls, start = 0, time.perf_counter()
    for _ in timed_out(seconds):
        task.clear()
        task()
        calls += 1
    return (time.perf_counter() - start) / calls


def timed_out(seconds: float) -> Iterator[None]:
    """At least once, and again until so many seconds have passed."""
    end = time.perf_counter() + seconds
    yield
    while time.perf_counter() < end:
        yield


@contextmanager
def busy_programs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A program for each core that computes all the time; stopped at first."""
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(SETTLE_SECONDS)
        tell(programs, signal.SIGSTOP)
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.wait()


def tell(programs: list[subprocess.Popen[bytes]], what: signal.Signals) -> None:
    for program in programs:
        program.send_signal(what)


SUITE = Suite(
    name="busy",
    says="a training step with a busy program on each core, beside a quiet machine; a fair share is 2",
    cases=tuple(Case(cell, size) for cell in ("RNN", "LSTM") for size in SIZES),
    measure=measure,
    promises=(
        Promise("all", "ratio", "cpu, busy over quiet", "geometric mean", most=3.0),
        Promise("all", "ratio", "cpu, busy over quiet", "largest", most=3.0),
    ),
)
