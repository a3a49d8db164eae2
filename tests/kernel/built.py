"""A kernel built and run by a target, on tensors shaped as the interpreter takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leporello.engine.targets import TARGETS
from leporello.kernel.description import Kernel

# every engine with kernels on the CPU: a new target is tested with no line of its own
WITH_KERNELS = [
    name
    for name, target in TARGETS.items()
    if target.kernels and name != "interpreted" and not name.startswith("gpu-host") and target.runs_on("cpu")
]


def run_built(
    engine: str,
    kernel: Kernel,
    *,
    states: Sequence[Tensor | None],
    reads: Sequence[Tensor],
    rows: Sequence[Tensor],
    fixed: Sequence[Tensor],
    steps: int,
    batch: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """As `interpreter.run`, by the runner of a target: states after the last step, sequences, totals."""
    build = TARGETS[engine].build
    assert build is not None
    following = [torch.empty(batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["next"]]
    writes = [torch.empty(steps, batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["write"]]
    ready = build(kernel).begin([value.contiguous() for value in rows], fixed, steps * batch)
    totals = ready(states, [value.contiguous() for value in reads], following, writes, steps, batch)
    return following, [*writes, *(totals or ())]
