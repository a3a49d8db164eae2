"""`call`: what a cached call costs beyond its kernels, and a single step beside torch.nn's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import leporello as lp
from benchmarks import agreement
from benchmarks.cases import FORWARD, KEPT, TRAINING, Case, Exercise
from benchmarks.cells import TORCH
from benchmarks.compare import medians
from benchmarks.contestants import Engine
from benchmarks.kernels import clocked
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.tasks import Sweep, Task
from benchmarks.turns import Settings, ratio, seconds_of

STEP = "one step"
CALLS = 100  # of each kind in a round
MICROSECONDS = {FORWARD: 60.0, KEPT: 60.0, TRAINING: 120.0}  # promised


def measure(case: Case, settings: Settings) -> Measurement:
    return _step(case, settings) if case.what == STEP else _beyond_kernels(case, settings)


def _beyond_kernels(case: Case, settings: Settings) -> Measurement:
    """Calls and the kernels in them are timed apart, so that no clock runs inside a call that is timed."""
    task = Engine("cpu").prepare(case.build(), case.what)
    seconds_of(task)
    calls: list[float] = []
    kernels: list[float] = []
    done, since = 0, time.perf_counter()
    while settings.goes_on(done, since):
        calls.append(_median_call(task))
        kernels.append(_median_kernels(task))
        done += 1
    found = {"call": calls, "kernels": kernels, "beyond": [a - b for a, b in zip(calls, kernels, strict=True)]}
    return Measurement(case, figures={"microseconds": medians(found, 1e6)}, rounds=done)


def _median_call(task: Task) -> float:
    return statistics.median(seconds_of(task) for _ in range(CALLS))


def _median_kernels(task: Task) -> float:
    found = []
    for _ in range(CALLS):
        task.clear()
        with clocked() as clock:
            task()
        found.append(clock.seconds)
    return statistics.median(found)


def _step(case: Case, settings: Settings) -> Measurement:
    """`net.step` beside the cell of torch.nn, the state given, under no_grad."""
    exercise = case.build()
    tasks = _steps(exercise)
    agreement.check(tasks)
    found: dict[str, list[float]] = {name: [] for name in tasks}
    done, since = 0, time.perf_counter()
    while settings.goes_on(done, since):
        for name, task in tasks.items() if done % 2 else reversed(tasks.items()):
            found[name].append(_median_call(task))
        done += 1
    theirs, ours = tasks
    return Measurement(
        case,
        figures={"microseconds": medians(found, 1e6)},
        ratios={f"{theirs} over {ours}": ratio(found[theirs], found[ours])},
        rounds=done,
    )


def _steps(exercise: Exercise) -> dict[str, Task]:
    net, theirs = lp.Recurrent(exercise.cell, engine="cpu"), lp.to_torch(exercise.cell)
    state = tuple(torch.randn_like(leaf) for leaf in exercise.cell.initial_state(exercise.inputs.shape[1]))
    return {
        "torch.nn": Sweep(lambda inputs: theirs(inputs[0], state)[0], (), exercise, FORWARD),
        "cpu": Sweep(lambda inputs: net.step(inputs[0], state)[0], (), exercise, FORWARD),
    }


def _of(what: str) -> Callable[[Case], bool]:
    return lambda case: case.what == what


SUITE = Suite(
    name="call",
    says="the time of a cached call beyond that in its kernels; one LSTM step beside torch.nn.LSTMCell",
    cases=(
        *(Case(cell, Size(1, 1, 8, 8), what) for what in MICROSECONDS for cell in TORCH),
        Case("LSTM", Size(1, 1, 64, 64), STEP),
    ),
    measure=measure,
    promises=(
        *(
            Promise(what, "microseconds", "beyond", "largest", most=most, of=_of(what))
            for what, most in MICROSECONDS.items()
        ),
        Promise("one LSTM step", "ratio", "torch.nn over cpu", "smallest", least=1.0, of=_of(STEP)),
    ),
)
