"""Contestants on one case, side by side: they agree, then they are measured. Knows no contestant by name."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import agreement
from benchmarks.cases import Case
from benchmarks.contestants import Contestant
from benchmarks.memory import peak_bytes
from benchmarks.record import Measurement
from benchmarks.tasks import Task
from benchmarks.turns import Settings, ratio, times


def agreed(case: Case, contestants: Sequence[Contestant]) -> dict[str, Task]:
    """Their tasks, by name; contestants that disagree raise."""
    exercise = case.build()
    tasks = {one.name: one.prepare(exercise, case.what) for one in contestants}
    agreement.check(tasks)
    return tasks


def timed(case: Case, tasks: Mapping[str, Task], settings: Settings) -> Measurement:
    """How many times faster the last one is than each of the others."""
    found = times(tasks, settings)
    *others, ours = found
    return Measurement(
        case,
        figures={"milliseconds": medians(found, 1e3)},
        ratios={f"{name} over {ours}": ratio(found[name], found[ours]) for name in others},
        rounds=len(found[ours]),
    )


def weighed(case: Case, tasks: Mapping[str, Task]) -> Measurement:
    """The peak memory of the last one as a share of each of the others'."""
    peaks = {name: peak_bytes(task) for name, task in tasks.items()}
    *others, ours = peaks
    return Measurement(
        case,
        figures={"peak_bytes": peaks},
        ratios={f"peak of {ours} over {name}": ratio([peaks[ours]], [peaks[name]]) for name in others},
    )


def medians(found: Mapping[str, Sequence[float]], scale: float = 1.0) -> dict[str, float]:
    return {name: statistics.median(values) * scale for name, values in found.items()}
