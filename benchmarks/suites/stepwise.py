"""`stepwise`: the engine that needs no compiler, beside a Python loop: time and peak memory."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cases import Case
from benchmarks.compare import agreed, timed, weighed
from benchmarks.contestants import Eager, Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings

CELLS = ("Elman", "GRU", "LSTM", "LayerNormLSTM", "Leaky")


def measure(case: Case, settings: Settings) -> Measurement:
    tasks = agreed(case, [Eager(), Engine("stepwise")])
    time, memory = timed(case, tasks, settings), weighed(case, tasks)
    return replace(time, figures={**time.figures, **memory.figures}, ratios={**time.ratios, **memory.ratios})


SUITE = Suite(
    name="stepwise",
    says="a training step on the engine stepwise beside an eager Python loop",
    cases=tuple(
        Case(cell, Size(length, 32, hidden, hidden)) for cell in CELLS for length in (64, 512) for hidden in (64, 256)
    ),
    measure=measure,
    promises=(
        Promise("time", "ratio", "eager over stepwise", "geometric mean", least=1.4),
        Promise("peak memory", "ratio", "peak of stepwise over eager", "geometric mean", most=1.0),
        Promise("peak memory", "ratio", "peak of stepwise over eager", "largest"),
    ),
)
