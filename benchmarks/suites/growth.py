"""`growth`: whether a step costs the same in a long sequence as in a short one."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.cells import TORCH
from benchmarks.compare import medians
from benchmarks.contestants import Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings, ratio, times

SHARE = 8  # the short sequence is so many times shorter


def measure(case: Case, settings: Settings) -> Measurement:
    whole = Engine("cpu").prepare(case.build(), case.what)
    steps = {"long": case.size.length, "short": case.size.length // SHARE}
    tasks = {name: whole.begin(count) for name, count in steps.items()}
    whole()  # what is built once is built now
    found = times(tasks, settings)
    per_step = {name: [seconds / steps[name] for seconds in values] for name, values in found.items()}
    return Measurement(
        case,
        figures={"microseconds per step": medians(per_step, 1e6)},
        ratios={"long over short": ratio(per_step["long"], per_step["short"])},
        rounds=len(found["long"]),
    )


SUITE = Suite(
    name="growth",
    says="the time of a step in a sequence, and in one that is 8 times shorter",
    cases=tuple(Case(cell, Size(8192, 16, 64, 64)) for cell in TORCH),
    measure=measure,
    promises=tuple(
        Promise("all three", "ratio", "long over short", gather, most=1.1) for gather in ("geometric mean", "largest")
    ),
)
