"""`CpuRunner`: a kernel as built C that takes tensors. Addresses, strides and packed matrices are found here."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.engine.buffer_pool import empty_from_pool
from leporello.engine.cpu import native
from leporello.engine.cpu.build import library, vector_bytes
from leporello.engine.cpu.c_emitter import source_of
from leporello.engine.cpu.c_memory import MATRIX_WORDS, rows_together
from leporello.engine.target import Run, reusable
from leporello.kernel.dependencies import loaded
from leporello.kernel.description import Block, Kernel, Matrix, Pointwise, Product

LEAST_PACKED_ROWS = 8  # rows of all steps together: for fewer, matrices are read as they are, not packed
# From so many numbers on, the columns of a matrix are divided among threads, if each has fewer rows than so many.
SHARED_COLUMNS = ((1 << 15, 1), (1 << 18, 4), (1 << 19, 24))


@dataclass(frozen=True, eq=False)
class CpuRunner:
    """A kernel, built.

    source        the path of its C text
    code          the library, held as long as its functions may be called
    work          operations of one row in one step, about
    team_rows     rows that the scratch memory of a team of threads has room for
    rows_alone    rows that a thread must have to take them alone
    loaded        which of the fixed values the C reads element by element, contiguous; the others are only multiplied
    matrices      for each matrix: which fixed value it is, its axes of head, inner and outer numbers, and their strides
                  where it is contiguous (None where its value has other axes too)
    pack          the function that packs matrices
    packed_size   numbers that all matrices take in packed tiles
    packed_at     bytes in front of each packed matrix
    sizes         of the matrices, for `pack`
    """

    kernel: Kernel
    source: Path
    code: ctypes.CDLL
    address: int
    scratch: int
    products: int
    work: int
    team_rows: int
    rows_alone: int
    loaded: tuple[int, ...]
    matrices: tuple[tuple[int, tuple[int | None, int, int], tuple[int, ...] | None], ...]
    pack: Callable[[int, int, int], None]
    packed_size: int
    packed_at: tuple[int, ...]
    sizes: array[int]

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> Run:
        held = [*rows, *fixed]
        for slot in self.loaded:
            held[len(rows) + slot] = fixed[slot].contiguous()
        pointers = [value.data_ptr() for value in held]
        words: list[int] = []
        for slot, axes, strides in self.matrices:  # `matrix` in products.c: packed tiles, address, strides
            value = fixed[slot]
            if strides is not None and value.is_contiguous():
                words += (0, pointers[len(rows) + slot], *strides)
            else:
                words += (0, pointers[len(rows) + slot], *(0 if axis is None else value.stride(axis) for axis in axes))
        packed = self._pack(words) if words and row_count >= LEAST_PACKED_ROWS else None
        words.append(self.products)
        run_kernel, address, scratch, work = native.run_kernel, self.address, self.scratch, self.work

        def run(
            states: Sequence[Tensor | None],
            reads: Sequence[Tensor],
            next_states: Sequence[Tensor],
            writes: Sequence[Tensor],
            steps: int,
            batch: int,
            holds: Any = (held, packed),
        ) -> None:
            arguments = [0 if state is None else state.data_ptr() for state in states]  # 0 stands for zeros
            for value in reads:
                arguments.append(value.data_ptr())
            arguments += pointers
            for value in next_states:
                arguments.append(value.data_ptr())
            for value in writes:
                arguments.append(value.data_ptr())
            arguments += words
            threads = native.thread_count(steps * batch * work)
            team_rows = self.team_rows if batch < threads * self.rows_alone else 0
            run_kernel(address, arguments, batch, steps, scratch, threads, team_rows)

        return run

    def _pack(self, words: list[int]) -> Tensor:
        """Pack the kernel's matrices into tiles; the tensor holds the tiles.

        words   of the matrices, MATRIX_WORDS each, in which the addresses of the packed tiles are put
        """
        reuse = reusable()
        key = None if reuse is None else (id(self), tuple(words))
        if reuse is not None and key in reuse:
            packed: Tensor = reuse[key]
            words[::MATRIX_WORDS] = [packed.data_ptr() + begin for begin in self.packed_at]
            return packed
        packed = empty_from_pool((self.packed_size,), self.kernel.dtype, native.CPU)
        words[::MATRIX_WORDS] = [packed.data_ptr() + begin for begin in self.packed_at]
        arguments = array("q", words)
        self.pack(arguments.buffer_info()[0], self.sizes.buffer_info()[0], len(self.packed_at))
        if reuse is not None:
            reuse[key] = packed
        return packed


def build(kernel: Kernel) -> CpuRunner:
    """A kernel, written as C, compiled and loaded."""
    code, source = library(source_of(kernel, vector_bytes()), kernel.name)
    *begins, packed_size = accumulate((_packed_size(matrix, kernel) for matrix in kernel.matrices), initial=0)
    shared = [rows for m in kernel.matrices for size, rows in SHARED_COLUMNS if m.inner * m.outer >= size]
    return CpuRunner(
        kernel=kernel,
        source=source,
        code=code,
        address=native.address_of(code.run),
        scratch=ctypes.c_long.in_dll(code, "scratch_bytes").value,
        products=native.address_of(getattr(native.runtime(), f"product_{_letter(kernel)}")),
        work=sum(map(_work, kernel.blocks)),
        team_rows=rows_together(kernel),
        rows_alone=max(shared, default=0),
        loaded=tuple(sorted(loaded(kernel))),
        matrices=tuple((matrix.fixed, matrix.axes, _strides(matrix, kernel)) for matrix in kernel.matrices),
        pack=getattr(native.runtime(), f"pack_{_letter(kernel)}"),
        packed_size=packed_size,
        packed_at=tuple(begin * kernel.dtype.itemsize for begin in begins),
        sizes=array("q", [size for m in kernel.matrices for size in (m.heads, m.inner, m.outer)]),
    )


def _strides(matrix: Matrix, kernel: Kernel) -> tuple[int, ...] | None:
    """Of a contiguous matrix along head, inner and outer axis; 0 where it has no axis of heads."""
    pairs = zip(matrix.axes, (matrix.heads, matrix.inner, matrix.outer), strict=True)
    sizes = {axis: size for axis, size in pairs if axis is not None}
    if len(sizes) != len(kernel.buffers["fixed"][matrix.fixed].sizes):
        return None
    return tuple(
        0 if axis is None else math.prod(size for other, size in sizes.items() if other > axis) for axis in matrix.axes
    )


def _packed_size(matrix: Matrix, kernel: Kernel) -> int:
    """Numbers that a matrix takes in tiles two vectors wide."""
    tile = 2 * vector_bytes() // kernel.dtype.itemsize
    return matrix.heads * matrix.inner * (-(-matrix.outer // tile) * tile)


def _work(block: Block) -> int:
    """Operations of a block for one row, about."""
    if isinstance(block, Product):
        return 2 * block.heads * block.inner * block.outer
    sizes = block.sizes if isinstance(block, Pointwise) else (*block.sizes, *block.over)
    return 20 * math.prod(sizes)


def _letter(kernel: Kernel) -> str:
    return "d" if kernel.dtype == torch.float64 else "f"
