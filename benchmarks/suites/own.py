"""`own`: cells that torch.nn has not, beside a Python loop and beside jax."""

from __future__ import annotations

import importlib.util

from benchmarks.cases import Case
from benchmarks.cells import OWN
from benchmarks.compare import agreed, timed
from benchmarks.contestants import Contestant, Eager, Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import SIZES
from benchmarks.turns import Settings

OTHERS: list[Contestant] = [Eager()]
NOTES: tuple[str, ...] = ()

if importlib.util.find_spec("jax"):
    from benchmarks.jax_scan import JaxScan

    OTHERS.append(JaxScan())
else:
    NOTES = ("jax is not installed and is left out; pip install '.[bench]' brings it",)


def measure(case: Case, settings: Settings) -> Measurement:
    return timed(case, agreed(case, [*OTHERS, Engine("cpu")]), settings)


def is_small(case: Case) -> bool:
    """Where a step is so short that the loop around it is what costs."""
    return case.size.hidden <= 64 or case.size.batch == 1


SUITE = Suite(
    name="own",
    says="cells of one's own beside an eager Python loop with autograd and jax.lax.scan under jit",
    cases=tuple(Case(cell, size) for cell in OWN for size in SIZES),
    measure=measure,
    promises=(
        Promise("beside the eager loop", "ratio", "eager over cpu", "geometric mean", least=9.0),
        Promise("hidden <= 64 or batch 1", "ratio", "eager over cpu", "geometric mean", least=14.0, of=is_small),
        Promise("beside jax", "ratio", "jax over cpu", "geometric mean", least=2.0),
        Promise("beside the eager loop", "ratio", "eager over cpu", "smallest"),
        Promise("beside jax", "ratio", "jax over cpu", "smallest"),
    ),
    notes=NOTES,
)
