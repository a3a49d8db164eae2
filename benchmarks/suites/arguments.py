"""`arguments`: what `lengths` and `resets` cost, beside the same call without them."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import agreement
from benchmarks.cases import Case, Exercise
from benchmarks.cells import TORCH
from benchmarks.compare import medians
from benchmarks.contestants import Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings, ratio, times

SIZES = (Size(64, 32, 64, 64), Size(128, 32, 256, 256), Size(1024, 16, 64, 64), Size(100, 20, 200, 200))


def lengths(exercise: Exercise) -> dict[str, Any]:
    """Rows of any length from 1 on."""
    length, batch = exercise.inputs.shape[:2]
    values = torch.randint(1, length + 1, (batch,), generator=torch.Generator().manual_seed(2))
    return {"lengths": values.to(exercise.inputs.device)}


def resets(exercise: Exercise) -> dict[str, Any]:
    """One step in fifty begins anew."""
    length, batch = exercise.inputs.shape[:2]
    chosen = torch.rand(length, batch, generator=torch.Generator().manual_seed(3)) < 0.02
    return {"resets": chosen.to(exercise.inputs.device)}


ARGUMENTS = {"lengths": lengths, "resets": resets}


def measure(case: Case, settings: Settings) -> Measurement:
    """Each argument is checked against the engine `reference` first."""
    exercise = case.build()
    begin = exercise.begin(agreement.STEPS)
    tasks = {"without": Engine("cpu").prepare(exercise, case.what)}
    for name, arguments in ARGUMENTS.items():
        engines = [Engine(engine, arguments=arguments) for engine in ("reference", "cpu")]
        agreement.check({f"{one.name} with {name}": one.prepare(begin, case.what) for one in engines})
        tasks[f"with {name}"] = engines[-1].prepare(exercise, case.what)
    for task in tasks.values():
        task()  # what is built once is built now
    found = times(tasks, settings)
    return Measurement(
        case,
        figures={"milliseconds": medians(found, 1e3)},
        ratios={f"with {name} over without": ratio(found[f"with {name}"], found["without"]) for name in ARGUMENTS},
        rounds=len(found["without"]),
    )


SUITE = Suite(
    name="arguments",
    says="calls with lengths and with resets, beside the same call without",
    cases=tuple(Case(cell, size) for cell in TORCH for size in SIZES),
    measure=measure,
    promises=tuple(
        Promise(name, "ratio", f"with {name} over without", gather, most=1.1)
        for name in ARGUMENTS
        for gather in ("geometric mean", "largest")
    ),
)
