"""Rows of a whole window times a matrix, by a kernel: what runs at once where a matrix is too large to run inside.

Knows tensors and pointers; knows nothing of graphs.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu import library
from leporello.engine.cpu.build import wide_bytes
from leporello.engine.cpu.library import CPU, address_of, run_kernel, worth
from leporello.engine.memory import room

FEW_ROWS = 512  # for fewer, to bring a matrix into panels costs more than they save


class Multiply:
    """value @ matrix, or bias + value @ matrix where a bias comes first; value has rows, the others are invariant.

    inner, outer   the axes of the matrix
    """

    __name__ = "multiply"
    places = True  # results may go to memory that is handed in

    def __init__(self, inner: int, outer: int, dtype: torch.dtype) -> None:
        self.inner, self.outer, self.dtype = inner, outer, dtype
        self.code: dict[Any, tuple[int, int, int]] = {}

    def __call__(self, *given: Tensor, out: Tensor | None = None) -> Tensor:
        *bias, value, matrix = given
        rows = value.shape[0]
        if rows < FEW_ROWS:
            return torch.addmm(*given, out=out) if bias else torch.mm(*given, out=out)
        value = value if value.stride(1) == 1 else value.contiguous()
        added = bias[0].contiguous() if bias else None
        if out is None:
            out = room((rows, self.outer), self.dtype, CPU)
        code, scratch, count = self._code(library.runtime())
        panels = room((count,), self.dtype, CPU)
        told = array(
            "q",
            [
                value.data_ptr(),
                matrix.data_ptr(),
                0 if added is None else added.data_ptr(),
                panels.data_ptr(),
                out.data_ptr(),
                self.inner,
                self.outer,
                value.stride(0),
                *matrix.stride(),
                out.stride(0),
            ],
        )  # `multiplied` in multiply.c
        threads = worth(2 * rows * self.inner * self.outer)
        run_kernel(code, [told.buffer_info()[0], scratch], rows, 1, scratch * threads, threads, rows)
        return out

    def _code(self, runtime: Any) -> tuple[int, int, int]:
        """The address of what runs, bytes of scratch for each thread, and numbers in all panels."""
        if runtime not in self.code:
            letter = "d" if self.dtype == torch.float64 else "f"
            panel = 2 * wide_bytes() // self.dtype.itemsize
            self.code[runtime] = (
                address_of(getattr(runtime, f"multiply_{letter}")),
                getattr(runtime, f"multiply_scratch_{letter}")(),
                self.inner * (-(-self.outer // panel) * panel),
            )
        return self.code[runtime]


@functools.cache
def is_faster() -> bool:
    """Whether it is faster than torch's own product: so on processors of AMD, for which torch's library is not made."""
    if not torch.backends.mkl.is_available():
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return any("AuthenticAMD" in line for line in file)
    except OSError:
        return False
