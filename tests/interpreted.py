"""The target `interpreted`: kernels run by the interpreter of their description, with no compiler.

All that a second engine with kernels needs is here: a runner that takes tensors, and one `Target` record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

from torch import Tensor

from leporello.engine.cpu.target import CPU_TARGET, EXPENSIVE_IN_KERNELS, is_drawn_in
from leporello.engine.target import BoundKernel, Costs, Target, WindowSizes
from leporello.engine.targets import register
from leporello.kernel import interpreter
from leporello.kernel.description import Kernel
from leporello.loop.sizes import Size
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.real_planes import real_planes


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
) -> Sequence[Tensor]:
    kernel = for_lengths(kernel, getattr(batch, "lengths", ()))
    sequences = [
        value.reshape(steps, batch, *buffer.sizes) for value, buffer in zip(reads, kernel.buffers["read"], strict=True)
    ]
    after, written = interpreter.run(
        kernel, states=states, reads=sequences, rows=rows, fixed=fixed, steps=steps, batch=batch
    )
    written, totals = written[: len(writes)], written[len(writes) :]
    for place, value in zip((*next_states, *writes), (*after, *written), strict=True):
        place.copy_(value.reshape(place.shape))
    return totals


def for_lengths(kernel: Kernel, lengths: Sequence[int]) -> Kernel:
    """The kernel for these free lengths: with numbers in the place of sizes. What is used twice stays one object."""
    made: dict[int, Any] = {}

    def numbered(part: Any) -> Any:
        if isinstance(part, Size):
            return part.value(lengths)
        if id(part) not in made:
            made[id(part)] = _with_parts(part, numbered)
        return made[id(part)]

    whole: Kernel = numbered(kernel) if lengths else kernel
    return whole


def _with_parts(part: Any, new: Callable[[Any], Any]) -> Any:
    """A record, tuple or dict with each part replaced; anything else as it is."""
    if is_dataclass(part):
        return type(part)(*(new(getattr(part, field.name)) for field in fields(part)))
    if isinstance(part, dict):
        return {key: new(value) for key, value in part.items()}
    return tuple(new(one) for one in part) if isinstance(part, tuple) else part


INTERPRETED = Target(
    name="interpreted",
    devices={"cpu": "the CPU"},
    stored=CPU_TARGET.stored,
    costs=Costs(expensive=EXPENSIVE_IN_KERNELS, drawn_in=is_drawn_in),
    passes=(Pass("plan", "real_planes", "kernels compute with real numbers", lambda c, loop: real_planes(loop)),),
    default_windows=WindowSizes(max_rows=4096),
    build=InterpretedRunner,
)
register(INTERPRETED)
