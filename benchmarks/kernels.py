"""A clock inside the engine `cpu`: what its kernels do and how long they take. Knows nothing of cells.

Kernels are told apart by the direction of time: those that go backwards are of the backward sweep. Operations are those
of the products alone, a multiplication and an addition each; what is computed value by value is not counted.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leporello.engine.cpu.runner import CpuRunner
from leporello.kernel.description import Kernel, Product


@dataclass
class Spent:
    seconds: float = 0.0
    operations: int = 0


@dataclass
class Clock:
    """What kernels have spent while it runs."""

    forward: Spent = field(default_factory=Spent)
    backward: Spent = field(default_factory=Spent)

    @property
    def seconds(self) -> float:
        return self.forward.seconds + self.backward.seconds


def operations(kernel: Kernel) -> int:
    """Of one step of one row."""
    return sum(2 * block.heads * block.inner * block.outer for block in kernel.blocks if isinstance(block, Product))


@contextmanager
def clocked() -> Iterator[Clock]:
    """Within it every run of a kernel is counted."""
    clock, original = Clock(), CpuRunner.begin

    @functools.wraps(original)
    def begin(runner: CpuRunner, rows: Any, fixed: Any, row_count: int) -> Any:
        run = original(runner, rows, fixed, row_count)  # packs the matrices: not counted
        spent = clock.backward if runner.kernel.reverse else clock.forward

        def timed(states: Any, reads: Any, next_states: Any, writes: Any, steps: int, batch: int) -> None:
            start = time.perf_counter()
            run(states, reads, next_states, writes, steps, batch)
            spent.seconds += time.perf_counter() - start
            spent.operations += operations(runner.kernel) * steps * batch

        return timed

    CpuRunner.begin = begin  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        CpuRunner.begin = original  # type: ignore[method-assign]
