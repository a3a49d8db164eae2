"""Sums over all rows of a window, by kernels: what gradients of matrices and biases are made of.

Several in one call: they read the same values, and what one has read the next finds in the cache. Knows tensors and
pointers; knows nothing of graphs.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu import library
from leporello.engine.cpu.library import address_of, run_kernel, worth

Form = tuple[tuple[int, int, int, int], ...]  # for each sum: which value, which other or -1, and their columns


def totals(form: Form, *values: Tensor) -> list[Tensor]:
    """first.t() @ second for each pair; first.sum(0, keepdim=True) where there is no second."""
    dtype, rows = values[0].dtype, values[0].shape[0]
    places = [value if value.stride(-1) == 1 else value.contiguous() for value in values]
    given = [(value.data_ptr(), value.stride(0)) for value in places]
    words, made = array("q"), []
    for first, second, m, n in form:
        out = torch.empty((1, m) if second < 0 else (m, n), dtype=dtype)
        made.append(out)
        address, stride = given[first]
        other, other_stride = (0, 0) if second < 0 else given[second]
        words.extend((address, other, out.data_ptr(), m, n, stride, other_stride))  # `total` in totals.c
    threads = worth(rows * _work(form))
    code, each = _code(library.runtime(), form, dtype, threads)
    run_kernel(code, [words.buffer_info()[0], len(form), each], rows, 1, each * threads, threads, max(rows, 1))
    return made


@functools.lru_cache(maxsize=1024)
def _work(form: Form) -> int:
    """Operations for one row, about."""
    return sum(2 * m * max(n, 4) for _, _, m, n in form)


@functools.lru_cache(maxsize=1024)
def _code(runtime: Any, form: Form, dtype: torch.dtype, threads: int) -> tuple[int, int]:
    """The address of what runs, and the bytes of scratch that each thread needs."""
    letter, words = "d" if dtype == torch.float64 else "f", array("q")
    for _, second, m, n in form:
        words.extend((0, int(second >= 0), 0, m, n, 0, 0))
    needs = getattr(runtime, f"totals_scratch_{letter}")
    return address_of(getattr(runtime, f"totals_{letter}")), needs(words.buffer_info()[0], len(form), threads)
