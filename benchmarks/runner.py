"""The one runner: takes cases and contestants, gives measurements. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks import measure
from benchmarks.cases import Case
from benchmarks.contestants import Contestant
from benchmarks.measure import Ratio, Times


@dataclass(frozen=True)
class Measurement:
    """One case: what each contestant took, and how the others compare with the first."""

    case: Case
    times: dict[str, Times]
    ratios: dict[str, Ratio]
    peaks: dict[str, int] = field(default_factory=dict)

    def memory_ratio(self, name: str) -> float:
        """Peak bytes over the first contestant's: below 1 where less memory is needed."""
        return self.peaks[name] / next(iter(self.peaks.values()))


def run(
    cases: Sequence[Case],
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    memory: bool,
    announce: Callable[[Case], None] = lambda case: None,
) -> Iterator[Measurement]:
    """Measure case after case; contestants that disagree on a case raise before it is timed."""
    for case in cases:
        announce(case)
        cell, inputs = case.build()
        runs = {one.name: one.prepare(cell) for one in contestants}
        steps = measure.training_steps(cell, inputs, runs)
        measure.check_agreement(measure.training_steps(cell, inputs[: measure.AGREEMENT_STEPS], runs))
        times = measure.times(steps, rounds)
        first = next(iter(times.values()))
        yield Measurement(
            case=case,
            times=times,
            ratios={name: measure.ratio(first, other) for name, other in times.items() if other is not first},
            peaks={name: measure.peak_bytes(step) for name, step in steps.items()} if memory else {},
        )
