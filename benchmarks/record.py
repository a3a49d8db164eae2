"""The records of a run: what was measured of a case, what is promised of a suite, and whether it is kept.

Knows nothing of how anything is measured or printed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.cases import Case
from benchmarks.turns import Ratio, Settings

Gather = Literal["geometric mean", "smallest", "largest"]
GATHER: dict[str, Callable[[Sequence[float]], float]] = {
    "geometric mean": statistics.geometric_mean,
    "smallest": min,
    "largest": max,
}


@dataclass(frozen=True)
class Measurement:
    """One case.

    figures   by unit, then by whom they are of
    ratios    by name, `A over B`
    rounds    how many there were
    failed    why there is no figure
    """

    case: Case
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    rounds: int = 1
    failed: str = ""

    def value(self, unit: str, name: str) -> float | None:
        if unit == "ratio":
            return self.ratios[name].median if name in self.ratios else None
        return self.figures.get(unit, {}).get(name)


@dataclass(frozen=True)
class Promise:
    """A summary of a suite, with the figure that is promised.

    of                 the cases it speaks of
    unit, figure       of their measurements: ("ratio", "eager over cpu")
    gather             how their figures become one
    least, most        what is promised; None: nothing in this direction
    """

    name: str
    unit: str
    figure: str
    gather: Gather
    least: float | None = None
    most: float | None = None
    of: Callable[[Case], bool] = lambda case: True


@dataclass(frozen=True)
class Summary:
    """What was found of a promise.

    found    None where every case failed
    cases    how many were measured
    whole    how many it speaks of
    failed   how many gave no figure
    """

    promise: Promise
    found: float | None
    cases: int
    whole: int
    failed: int

    @property
    def met(self) -> bool | None:
        """None where nothing is promised."""
        least, most = self.promise.least, self.promise.most
        if least is None and most is None:
            return None
        if self.found is None or self.failed:
            return False
        return (least is None or self.found >= least) and (most is None or self.found <= most)


@dataclass(frozen=True)
class Suite:
    """Cases that are measured in the same way.

    says     one sentence
    notes    what is left out here, and why
    lacks    what this machine lacks to measure anything of it, in a sentence; "" where nothing is missing
    """

    name: str
    says: str
    cases: tuple[Case, ...]
    measure: Callable[[Case, Settings], Measurement]
    promises: tuple[Promise, ...]
    notes: tuple[str, ...] = ()
    lacks: Callable[[], str] = lambda: ""


def summaries(suite: Suite, measurements: Sequence[Measurement]) -> list[Summary]:
    """Those of the suite's promises of which something was to be measured."""
    found = []
    for promise in suite.promises:
        own = [one for one in measurements if promise.of(one.case)]
        values = [value for one in own if (value := one.value(promise.unit, promise.figure)) is not None]
        failed = sum(bool(one.failed) for one in own)
        if values or failed:
            gathered = GATHER[promise.gather](values) if values else None
            found.append(Summary(promise, gathered, len(values), sum(map(promise.of, suite.cases)), failed))
    return found
