"""`methods`: gradient methods beside lp.Full, in time; for a long sequence, in memory too."""

from __future__ import annotations

import leporello as lp
from benchmarks.cases import Case
from benchmarks.compare import medians
from benchmarks.contestants import Engine
from benchmarks.memory import peak_bytes
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings, ratio, times

LONG = Size(20_000, 16, 256, 256)
SIZES = (Size(64, 32, 64, 64), Size(128, 32, 256, 256), Size(1024, 16, 64, 64), Size(100, 20, 200, 200))
ON_STEPWISE = "forward and backward, stepwise"
CUT = {"truncated": lp.Truncated(35), "random": lp.RandomTruncated()}
KEPT = {"checkpointed": lp.Checkpointed(), "two levels": lp.Checkpointed(levels=2)}


def is_long(case: Case) -> bool:
    return case.size.length >= LONG.length


def is_short(case: Case) -> bool:
    return not is_long(case)


def measure(case: Case, settings: Settings) -> Measurement:
    """Cut ones on every size; on the long sequence those that keep less."""
    methods = {"full": lp.Full(), **(KEPT if is_long(case) else CUT)}
    engine = "stepwise" if case.what == ON_STEPWISE else "cpu"
    exercise = Case(case.cell, case.size).build()
    tasks = {
        name: Engine(engine, name, lambda exercise, method=method: {"gradient": method}).prepare(exercise)  # type: ignore[misc]
        for name, method in methods.items()
    }
    for task in tasks.values():
        task()  # what is built once is built now
    found = times(tasks, settings)
    ratios = {f"{name} over full": ratio(found[name], found["full"]) for name in methods if name != "full"}
    figures = {"milliseconds": medians(found, 1e3)}
    if is_long(case):
        outputs = exercise.weighting.numel() * exercise.weighting.element_size()
        peaks = {name: float(peak_bytes(task) - outputs) for name, task in tasks.items()}
        figures["peak_bytes"] = peaks
        for name in KEPT:
            ratios[f"peak of {name} over full"] = ratio([peaks[name]], [peaks["full"]])
    return Measurement(case, figures=figures, ratios=ratios, rounds=len(found["full"]))


SUITE = Suite(
    name="methods",
    says="gradient methods beside the exact gradient of lp.Full",
    cases=(
        *(Case(cell, size) for cell in ("RNN", "LSTM") for size in SIZES),
        *(Case("LSTM", size, ON_STEPWISE) for size in SIZES[:2]),
        Case("LSTM", LONG),
    ),
    measure=measure,
    promises=(
        Promise("windows side by side", "ratio", "truncated over full", "geometric mean", most=1.05, of=is_short),
        Promise("cuts at random", "ratio", "random over full", "geometric mean", most=1.05, of=is_short),
        Promise("20,000 steps", "ratio", "checkpointed over full", "largest", most=1.6, of=is_long),
        Promise("20,000 steps", "ratio", "two levels over full", "largest", most=2.0, of=is_long),
        Promise("20,000 steps", "ratio", "peak of checkpointed over full", "largest", most=0.03, of=is_long),
        Promise("20,000 steps", "ratio", "peak of two levels over full", "largest", most=0.03, of=is_long),
    ),
)
