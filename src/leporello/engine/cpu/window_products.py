"""Products of the rows of a whole window with a large matrix, by a kernel of our own where torch's library is slower.

`with_window_products` replaces such products in an at-once stage; `WindowProduct` computes one with multiply.c.
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
from leporello.rewrite.skip_padding import is_row_matrix

aten = torch.ops.aten

MIN_ROWS = 512  # with fewer, packing the matrix costs more than it saves
MIN_MATRIX_NUMBERS = 1 << 15  # for a smaller matrix the overhead of a call is too large a part


class WindowProduct:
    """value @ matrix, or bias + value @ matrix for the operands (bias, value, matrix); only value has rows.

    With fewer than MIN_ROWS rows torch computes it.

    inner, outer   the sizes of the matrix
    code           what `_code` gives, by runtime library
    """

    __name__ = "multiply"
    places = True  # the result may be written into memory that is passed as `out`

    def __init__(self, inner: int, outer: int, dtype: torch.dtype) -> None:
        self.inner, self.outer, self.dtype = inner, outer, dtype
        self.code: dict[Any, tuple[int, int, int]] = {}

    def __call__(self, *operands: Tensor, out: Tensor | None = None) -> Tensor:
        *bias, value, matrix = operands
        rows = value.shape[0]
        if rows < MIN_ROWS:
            return torch.addmm(*operands, out=out) if bias else torch.mm(*operands, out=out)
        value = value if value.stride(1) == 1 else value.contiguous()
        added = bias[0].contiguous() if bias else None
        if out is None:
            out = empty_from_pool((rows, self.outer), self.dtype, native.CPU)
        code, scratch, packed_size = self._code(native.runtime(self.dtype))
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
        given = [words.buffer_info()[0], scratch]
        native.run_kernel(code, given, rows, 1, scratch * threads, threads, phases=2, dtype=self.dtype)
        return out

    def _code(self, code: Any) -> tuple[int, int, int]:
        """The address of the function, bytes of scratch for each thread, and elements in all packed tiles.

        code   the runtime library
        """
        if code not in self.code:
            letter = native.letter_of(self.dtype)
            tile = 2 * vector_bytes() // self.dtype.itemsize
            self.code[code] = (
                native.address_of(getattr(code, f"multiply_{letter}")),
                getattr(code, f"multiply_scratch_{letter}")(),
                self.inner * (-(-self.outer // tile) * tile),
            )
        return self.code[code]


@functools.cache
def is_faster() -> bool:
    """Whether `WindowProduct` beats torch's product: on AMD processors, where torch uses MKL, not tuned for them."""
    if not torch.backends.mkl.is_available():
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return any("AuthenticAMD" in line for line in file)
    except OSError:
        return False


def with_window_products(graph: fx.Graph) -> fx.Graph:
    """Replace products of rows with a large matrix by a `WindowProduct`, in place, where that is faster."""
    for node in list(graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and is_faster() and _fits(node):
            inner, outer = arguments(node)[-1].meta["val"].shape
            node.target = WindowProduct(inner, outer, node.meta["val"].dtype)
    return graph


def _fits(node: fx.Node) -> bool:
    """Whether `WindowProduct` can compute a product, and its matrix is large enough.

    It must be in single precision, with rows on the left only, no factors alpha and beta, and a vector as bias.
    """
    *bias, value, matrix = arguments(node)
    others = [operand.meta["val"] for operand in (*bias, matrix)]
    if node.kwargs or not is_row_matrix(value) or any(map(has_rows, others)):
        return False
    if not all(isinstance(size, int) for operand in others for size in operand.shape):
        return False
    single = {operand.dtype for operand in (value.meta["val"], *others)} == {torch.float32}
    biases_are_vectors = all(tuple(operand.shape) == (others[-1].shape[1],) for operand in others[:-1])
    return single and others[-1].numel() >= MIN_MATRIX_NUMBERS and biases_are_vectors
