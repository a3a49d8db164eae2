"""`forced`: a Jordan net with teacher forcing, beside the same net running free and beside torch by hand.

With true values fed back no step waits for another. By hand that is a few operators on all steps at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks import agreement
from benchmarks.cases import TRAINING, Case, Exercise
from benchmarks.compare import medians
from benchmarks.contestants import Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import SIZES, Size
from benchmarks.tasks import Sweep
from benchmarks.turns import Settings, ratio, times


def targets(exercise: Exercise) -> dict[str, Any]:
    return {"targets": true_values(exercise)}


def true_values(exercise: Exercise) -> Tensor:
    return torch.randn(exercise.weighting.shape, generator=torch.Generator().manual_seed(4))


class ByHand:
    """All steps at once with torch's operators, two matrices joined to one product, differentiated by autograd."""

    name = "by hand"

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Sweep:
        cell: Any = exercise.cell
        shifted = torch.cat([cell.initial_state(exercise.inputs.shape[1])[None], true_values(exercise)[:-1]])

        def run(inputs: Tensor) -> Tensor:
            seen = torch.cat([inputs, shifted[: len(inputs)]], -1).flatten(0, 1)
            h = torch.tanh(torch.addmm(cell.b, seen, torch.cat([cell.U, cell.W], 1).T))
            return torch.addmm(cell.c, h, cell.V.T).view(*inputs.shape[:2], -1)

        return Sweep(run, tuple(cell.parameters()), exercise, what)


def measure(case: Case, settings: Settings) -> Measurement:
    exercise = case.build()
    forced = Engine("auto", "forced", targets).prepare(exercise, case.what)
    by_hand = ByHand().prepare(exercise, case.what)
    agreement.check({"by hand": by_hand, "forced": forced})
    free = Engine("auto", "free").prepare(exercise, case.what)
    free()  # what is built once is built now
    found = times({"free": free, "by hand": by_hand, "forced": forced}, settings)
    return Measurement(
        case,
        figures={"milliseconds": medians(found, 1e3)},
        ratios={f"{name} over forced": ratio(found[name], found["forced"]) for name in ("free", "by hand")},
        rounds=len(found["forced"]),
    )


SUITE = Suite(
    name="forced",
    says="a Jordan net with teacher forcing beside the same net running free, and beside torch by hand",
    cases=tuple(Case("Jordan", size) for size in (Size(200, 32, 64, 128), *SIZES)),
    measure=measure,
    promises=(
        Promise("all sizes", "ratio", "free over forced", "smallest", least=1.0),
        Promise("all sizes", "ratio", "by hand over forced", "smallest", least=1.0),
        Promise("all sizes", "ratio", "by hand over forced", "geometric mean", least=1.0),
    ),
)
