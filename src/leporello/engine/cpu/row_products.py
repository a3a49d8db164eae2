"""Rows of a whole window times a large matrix, by a kernel of our own where torch's library is slower.

`with_row_products` finds such products in an at-once stage; `RowProduct` computes one by multiply.c.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.buffer_pool import empty_from_pool
from leporello.engine.cpu import native
from leporello.engine.cpu.build import vector_bytes
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments
from leporello.rewrite.skip_padding import is_table

aten = torch.ops.aten

LEAST_ROWS = 512  # for fewer, packing the matrix costs more than it saves
LEAST_NUMBERS = 1 << 15  # of a matrix; for smaller ones, the cost of a call is too much of the whole


class RowProduct:
    """value @ matrix, or bias + value @ matrix where a bias comes first; value has rows, the others are invariant.

    inner, outer   the axes of the matrix
    """

    __name__ = "multiply"
    places = True  # results may go to memory that is handed in

    def __init__(self, inner: int, outer: int, dtype: torch.dtype) -> None:
        self.inner, self.outer, self.dtype = inner, outer, dtype
        self.code: dict[Any, tuple[int, int, int]] = {}

    def __call__(self, *operands: Tensor, out: Tensor | None = None) -> Tensor:
        *bias, value, matrix = operands
        rows = value.shape[0]
        if rows < LEAST_ROWS:
            return torch.addmm(*operands, out=out) if bias else torch.mm(*operands, out=out)
        value = value if value.stride(1) == 1 else value.contiguous()
        added = bias[0].contiguous() if bias else None
        if out is None:
            out = empty_from_pool((rows, self.outer), self.dtype, native.CPU)
        code, scratch, packed_size = self._code(native.runtime())
        packed = empty_from_pool((packed_size,), self.dtype, native.CPU)
        words = array(
            "q",
            [
                value.data_ptr(),
                matrix.data_ptr(),
                0 if added is None else added.data_ptr(),
                packed.data_ptr(),
                out.data_ptr(),
                self.inner,
                self.outer,
                value.stride(0),
                *matrix.stride(),
                out.stride(0),
            ],
        )  # `multiplied` in multiply.c
        threads = native.thread_count(2 * rows * self.inner * self.outer)
        native.run_kernel(code, [words.buffer_info()[0], scratch], rows, 1, scratch * threads, threads, rows)
        return out

    def _code(self, code: Any) -> tuple[int, int, int]:
        """The address of what runs, bytes of scratch for each thread, and numbers in all packed tiles."""
        if code not in self.code:
            letter = "d" if self.dtype == torch.float64 else "f"
            tile = 2 * vector_bytes() // self.dtype.itemsize
            self.code[code] = (
                native.address_of(getattr(code, f"multiply_{letter}")),
                getattr(code, f"multiply_scratch_{letter}")(),
                self.inner * (-(-self.outer // tile) * tile),
            )
        return self.code[code]


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


def with_row_products(graph: fx.Graph) -> fx.Graph:
    """The graph, in which products of rows with a large matrix are computed by a kernel where that is faster."""
    for node in list(graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and is_faster() and _fits(node):
            inner, outer = arguments(node)[-1].meta["val"].shape
            node.target = RowProduct(inner, outer, node.meta["val"].dtype)
    return graph


def _fits(node: fx.Node) -> bool:
    """Single precision, rows on the left, and all else the same for every row."""
    *bias, value, matrix = arguments(node)
    others = [operand.meta["val"] for operand in (*bias, matrix)]
    if node.kwargs or not is_table(value) or any(map(has_rows, others)):
        return False
    single = {operand.dtype for operand in (value.meta["val"], *others)} == {torch.float32}
    vectors = all(tuple(operand.shape) == (others[-1].shape[1],) for operand in others[:-1])
    return single and others[-1].numel() >= LEAST_NUMBERS and vectors
