"""`wild`: cells of the kinds that people publish, beside a Python loop; the engine is the one that "auto" takes."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.compare import agreed, timed
from benchmarks.contestants import Eager, Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.turns import Settings
from benchmarks.wild_cells import WILD

OURS = "leporello"


def measure(case: Case, settings: Settings) -> Measurement:
    return timed(case, agreed(case, [Eager(), Engine("auto", OURS)]), settings)


def convolves(case: Case) -> bool:
    """Where the arithmetic of convolutions is most of the work."""
    return case.cell == "ConvLSTM"


SUITE = Suite(
    name="wild",
    says="twelve published kinds of cells beside an eager Python loop with autograd",
    cases=tuple(Case(name, Size(100, 32, inputs, hidden)) for name, (_, inputs, hidden) in WILD.items()),
    measure=measure,
    promises=(
        Promise("beside the eager loop", "ratio", f"eager over {OURS}", "geometric mean", least=6.0),
        Promise("without convolutions", "ratio", f"eager over {OURS}", "smallest", least=2.5,
                of=lambda case: not convolves(case)),
        Promise("convolutions", "ratio", f"eager over {OURS}", "smallest", least=1.0, of=convolves),
    ),
)  # fmt: skip
