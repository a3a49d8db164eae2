"""Sums over all rows of a window, by kernels: what gradients of matrices and biases are made of.

Several in one call: they read the same values, and what one has read the next finds in the cache. Knows tensors and
pointers; knows nothing of graphs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu import library
from leporello.engine.cpu.library import CPU, address_of, run_kernel, worth

Form = tuple[tuple[int, int, int, int], ...]


class Totals:
    """For each pair of values first.t() @ second; first.sum(0, keepdim=True) where there is no second.

    form      for each sum: which value, which other or -1, and their columns
    past      whether the last value tells of each row whether it is left out
    strides   of values whose rows lie one behind the other; the last, 0, of the value that is none
    work      operations for one row, about
    code      by number of threads: the address of what runs, and the bytes of scratch that each thread needs
    """

    __name__ = "totals"

    def __init__(self, form: Form, dtype: torch.dtype, past: bool = False) -> None:
        self.form, self.dtype, self.past = form, dtype, past
        self.shapes = [(1, m) if second < 0 else (m, n) for _, second, m, n in form]
        columns = {place: count for first, second, m, n in form for place, count in ((first, m), (second, n))}
        self.strides = [columns[place] for place in range(len(columns) - (-1 in columns))] + [0]
        self.work = sum(2 * m * max(n, 4) for _, _, m, n in form)
        self.code: dict[tuple[Any, int], tuple[int, int]] = {}

    def __call__(self, *values: Tensor) -> list[Tensor]:
        """The sums of values (rows, columns)."""
        given = [value if value.stride(-1) == 1 else value.contiguous() for value in values]
        return self.run(len(given[0]), [value.data_ptr() for value in given], [value.stride(0) for value in given])

    def run(self, rows: int, addresses: list[int], strides: Sequence[int] | None = None) -> list[Tensor]:
        """The same, of values by their addresses.

        strides   numbers from row to row, if rows do not lie one behind the other
        """
        given, left_out = [*addresses], 0
        if self.past:
            left_out = given.pop()
        given.append(0)  # the second value where there is none
        apart = self.strides if strides is None else [*strides[: len(given) - 1], 0]
        dtype = self.dtype
        made = [torch.empty(shape, dtype=dtype, device=CPU) for shape in self.shapes]
        words: list[int] = []
        for (first, second, m, n), out in zip(self.form, made, strict=True):
            words += (given[first], given[second], out.data_ptr(), m, n, apart[first], apart[second])
        told = array("q", words)  # `total` in totals.c
        threads = worth(rows * self.work)
        code, each = self._code(library.runtime(), threads)
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
