"""Sums over all rows of a window, by kernels: what gradients of matrices and biases are made of.

Several in one call: they read the same values, and what one has read the next finds in the cache. Knows tensors and
pointers; knows nothing of graphs.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu import library
from leporello.engine.cpu.library import CPU, address_of, run_kernel, worth

Form = tuple[tuple[int, int, int, int], ...]


class Totals:
    """For each pair of values first.t() @ second; first.sum(0, keepdim=True) where there is no second.

    form   for each sum: which value, which other or -1, and their columns
    past   whether the last value tells of each row whether it is left out
    work   operations for one row, about
    code   by number of threads: the address of what runs, and the bytes of scratch that each thread needs
    """

    __name__ = "totals"

    def __init__(self, form: Form, dtype: torch.dtype, past: bool = False) -> None:
        self.form, self.dtype, self.past = form, dtype, past
        self.shapes = [(1, m) if second < 0 else (m, n) for _, second, m, n in form]
        self.work = sum(2 * m * max(n, 4) for _, _, m, n in form)
        self.code: dict[tuple[Any, int], tuple[int, int]] = {}

    def __call__(self, *values: Tensor) -> list[Tensor]:
        """The sums of values (rows, columns)."""
        dtype, rows, left_out = self.dtype, values[0].shape[0], 0
        if self.past:
            *values, past = values  # type: ignore[assignment]
            past = past.contiguous()
            left_out = past.data_ptr()
        values = tuple([value if value.stride(1) == 1 else value.contiguous() for value in values])
        given = [(value.data_ptr(), value.stride(0)) for value in values]
        given.append((0, 0))
        made = [torch.empty(shape, dtype=dtype, device=CPU) for shape in self.shapes]
        words: list[int] = []
        for (first, second, m, n), out in zip(self.form, made, strict=True):
            (address, stride), (other, other_stride) = given[first], given[second]
            words += (address, other, out.data_ptr(), m, n, stride, other_stride)  # `total` in totals.c
        threads = worth(rows * self.work)
        code, each = self._code(library.runtime(), threads)
        told = array("q", words)
        run_kernel(code, [told.buffer_info()[0], len(made), each, left_out], rows, 1, each * threads, threads, rows)
        return made

    def _code(self, runtime: Any, threads: int) -> tuple[int, int]:
        key = (runtime, threads)
        if key not in self.code:
            letter, words = "d" if self.dtype == torch.float64 else "f", array("q")
            for _, second, m, n in self.form:
                words.extend((0, int(second >= 0), 0, m, n, 0, 0))
            needs = getattr(runtime, f"totals_scratch_{letter}")(words.buffer_info()[0], len(self.form), threads)
            self.code[key] = (address_of(getattr(runtime, f"totals_{letter}")), needs)
        return self.code[key]
