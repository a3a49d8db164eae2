"""The target `interpreted`: kernels run by the interpreter of their description, with no compiler.

All that a second engine with kernels needs is here: a runner that takes tensors, and one `Target` record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from leporello.engine.cpu.target import EXPENSIVE_IN_KERNELS, is_drawn_in
from leporello.engine.target import BoundKernel, Costs, Target, WindowSizes
from leporello.engine.targets import register
from leporello.kernel import interpreter
from leporello.kernel.description import Kernel


@dataclass(frozen=True, eq=False)
class InterpretedRunner:
    """A kernel, to be interpreted."""

    kernel: Kernel
    source = None

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> BoundKernel:
        return partial(_run, self.kernel, rows, fixed)


def _run(
    kernel: Kernel,
    rows: Sequence[Tensor],
    fixed: Sequence[Tensor],
    states: Sequence[Tensor | None],
    reads: Sequence[Tensor],
    next_states: Sequence[Tensor],
    writes: Sequence[Tensor],
    steps: int,
    batch: int,
) -> None:
    sequences = [
        value.reshape(steps, batch, *buffer.sizes) for value, buffer in zip(reads, kernel.buffers["read"], strict=True)
    ]
    after, written = interpreter.run(
        kernel, states=states, reads=sequences, rows=rows, fixed=fixed, steps=steps, batch=batch
    )
    for place, value in zip((*next_states, *writes), (*after, *written), strict=True):
        place.copy_(value.reshape(place.shape))


INTERPRETED = Target(
    name="interpreted",
    devices={"cpu": "the CPU"},
    costs=Costs(expensive=EXPENSIVE_IN_KERNELS, drawn_in=is_drawn_in),
    default_windows=WindowSizes(max_rows=4096),
    build=InterpretedRunner,
)
register(INTERPRETED)
