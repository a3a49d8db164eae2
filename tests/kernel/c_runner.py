"""A kernel run by the engine `cpu` on tensors shaped as the interpreter takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leporello.engine.cpu.library import built
from leporello.kernel.description import Kernel


def run_c(
    kernel: Kernel,
    *,
    states: Sequence[Tensor],
    reads: Sequence[Tensor],
    rows: Sequence[Tensor],
    fixed: Sequence[Tensor],
    steps: int,
    batch: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """The states after the last step, and the sequences that were written; as `interpreter.run`, by compiled C."""
    runner = built(kernel)
    inputs = [[value.contiguous() for value in values] for values in (states, reads, rows, fixed)]
    following = [torch.empty(batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["next"]]
    writes = [torch.empty(steps, batch, *buffer.sizes, dtype=buffer.dtype) for buffer in kernel.buffers["write"]]
    words: list[int] = []
    for matrix in kernel.matrices:
        value = inputs[3][matrix.fixed]
        strides = [0 if axis is None else value.stride(axis) for axis in matrix.axes]
        words += [0, value.data_ptr(), *strides]
    packed = runner.pack(words, steps * batch)
    pointers = [value.data_ptr() for values in (*inputs, following, writes) for value in values]
    runner.run([*pointers, *words], steps, batch)
    del packed
    return following, writes
