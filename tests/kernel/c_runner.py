"""A kernel run by the engine `cpu` on tensors shaped as the interpreter takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leporello.engine.cpu.runner import build
from leporello.kernel.description import Kernel


def run_c(
    kernel: Kernel,
    *,
    states: Sequence[Tensor | None],
    reads: Sequence[Tensor],
    rows: Sequence[Tensor],
    fixed: Sequence[Tensor],
    steps: int,
    batch: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """The states after the last step, and the sequences that were written; as `interpreter.run`, by compiled C."""
    following = [torch.empty(batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["next"]]
    writes = [torch.empty(steps, batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["write"]]
    ready = build(kernel).begin([value.contiguous() for value in rows], fixed, steps * batch)
    ready(states, [value.contiguous() for value in reads], following, writes, steps, batch)
    return following, writes
