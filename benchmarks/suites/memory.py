"""`memory`: the peak memory of a training step beside torch.nn's."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.cells import TORCH
from benchmarks.compare import agreed, weighed
from benchmarks.contestants import Engine, TorchNN
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import SIZES
from benchmarks.turns import Settings

SHARE = ("ratio", "peak of cpu over torch.nn")


def measure(case: Case, settings: Settings) -> Measurement:
    """Once: the count is exact."""
    return weighed(case, agreed(case, [TorchNN(), Engine("cpu")]))


SUITE = Suite(
    name="memory",
    says="peak memory of a training step beside torch.nn's",
    cases=tuple(Case(cell, size) for cell in TORCH for size in SIZES),
    measure=measure,
    promises=(
        Promise("all three", *SHARE, "geometric mean", most=1.1),
        Promise("all three", *SHARE, "largest", most=1.1),
    ),
)
