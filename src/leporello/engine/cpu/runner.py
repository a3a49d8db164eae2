"""`CpuRunner`: a kernel as built C that takes tensors. Addresses, strides and packed matrices are found here."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from leporello.engine.buffer_pool import empty_from_pool
from leporello.engine.cpu import native
from leporello.engine.cpu.build import library, vector_bytes
from leporello.engine.cpu.c_emitter import source_of
from leporello.engine.cpu.c_memory import MATRIX_WORDS, rows_together
from leporello.engine.target import reusable
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
    loaded: frozenset[int]
    packed_size: int
    packed_at: tuple[int, ...]
    sizes: array[int]

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> CpuRun:
        held = [*rows]
        held += [value.contiguous() if slot in self.loaded else value for slot, value in enumerate(fixed)]
        words: list[int] = []
        for matrix in self.kernel.matrices:
            value = held[len(rows) + matrix.fixed]
            words += (0, value.data_ptr())  # `matrix` in products.c: its packed tiles, its address, its strides
            words += [0 if axis is None else value.stride(axis) for axis in matrix.axes]
        packed = self._pack(words, row_count)
        return CpuRun(self, held, [value.data_ptr() for value in held], words, packed)

    def _pack(self, words: list[int], row_count: int) -> Tensor | None:
        """Pack the kernel's matrices into tiles, unless rows are few; the tensor holds the tiles.

        words   of the matrices, MATRIX_WORDS each, in which the addresses of the packed tiles are put
        """
        if row_count < LEAST_PACKED_ROWS or not words:
            return None
        reuse, key = reusable(), (id(self), tuple(words))
        packed: Tensor | None = None if reuse is None else reuse.get(key)
        new = packed is None
        if packed is None:
            packed = empty_from_pool((self.packed_size,), self.kernel.dtype, native.CPU)
        words[::MATRIX_WORDS] = [packed.data_ptr() + begin for begin in self.packed_at]
        if new:
            arguments = array("q", words)
            pack = getattr(native.runtime(), f"pack_{_letter(self.kernel)}")
            pack(arguments.buffer_info()[0], self.sizes.buffer_info()[0], len(self.packed_at))
            if reuse is not None:
                reuse[key] = packed
        return packed


class CpuRun:
    """A kernel with its invariants packed; it holds them as long as it may be called."""

    __slots__ = ("held", "packed", "pointers", "runner", "words")

    def __init__(
        self, runner: CpuRunner, held: list[Tensor], pointers: list[int], words: list[int], packed: Tensor | None
    ) -> None:
        self.runner, self.held, self.pointers, self.packed = runner, held, pointers, packed
        self.words = [*words, runner.products]

    def __call__(
        self,
        states: Sequence[Tensor | None],
        reads: Sequence[Tensor],
        next_states: Sequence[Tensor],
        writes: Sequence[Tensor],
        steps: int,
        batch: int,
    ) -> None:
        arguments = [0 if state is None else state.data_ptr() for state in states]  # 0 stands for zeros
        arguments += [value.data_ptr() for value in reads]
        arguments += self.pointers
        arguments += [value.data_ptr() for value in next_states]
        arguments += [value.data_ptr() for value in writes]
        arguments += self.words
        runner = self.runner
        threads = native.thread_count(steps * batch * runner.work)
        team_rows = runner.team_rows if batch < threads * runner.rows_alone else 0
        native.run_kernel(runner.address, arguments, batch, steps, runner.scratch, threads, team_rows)


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
        loaded=frozenset(loaded(kernel)),
        packed_size=packed_size,
        packed_at=tuple(begin * kernel.dtype.itemsize for begin in begins),
        sizes=array("q", [size for m in kernel.matrices for size in (m.heads, m.inner, m.outer)]),
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
