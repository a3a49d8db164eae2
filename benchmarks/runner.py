"""The one runner: takes a suite, gives its measurements and what they say of its promises. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.agreement import Disagreement
from benchmarks.cases import Case
from benchmarks.record import Measurement, Suite, Summary, summaries
from benchmarks.turns import Settings
from leporello.errors import LeporelloError


@dataclass(frozen=True)
class Result:
    """A suite that has run."""

    suite: Suite
    measurements: tuple[Measurement, ...]
    summaries: tuple[Summary, ...]


def run(
    suite: Suite, cases: Sequence[Case], settings: Settings, announce: Callable[[Case], None] = lambda case: None
) -> Result:
    """Measure these cases of a suite, one after the other; none, with a note, where the machine lacks something."""
    missing = suite.lacks()
    if missing:
        return Result(replace(suite, notes=(*suite.notes, missing)), (), ())
    found = []
    for case in cases:
        announce(case)
        found.append(_measured(suite, case, settings))
    return Result(suite, tuple(found), tuple(summaries(suite, found)))


def _measured(suite: Suite, case: Case, settings: Settings) -> Measurement:
    """What fails is not timed, and the other cases go on."""
    try:
        return suite.measure(case, settings)
    except (Disagreement, LeporelloError) as error:
        return Measurement(case, failed=f"{type(error).__name__}: {error}", rounds=0)
