"""`CpuRunner`: a kernel compiled from C that takes tensors; it packs matrices and passes addresses and strides."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.engine.buffer_pool import empty_from_pool
from leporello.engine.cpu import native
from leporello.engine.cpu.build import library_ahead, vector_bytes
from leporello.engine.cpu.c_emitter import c_source_of
from leporello.engine.cpu.c_memory import MATRIX_WORDS, MemoryLayout, free_lengths, rows_together
from leporello.engine.cpu.lagged_window import LaggedWindow
from leporello.engine.target import BoundKernel, invariant_cache
from leporello.kernel.dependencies import loaded
from leporello.kernel.description import Block, Buffer, Kernel, Matrix, Pointwise, Product
from leporello.loop.sizes import AnySize, Size, nominal

MOST_THREADS = 256  # that share the rows of a call: MOST in threads.c
STORAGE = {torch.int8: 1, torch.bfloat16: 2}  # narrower than the numbers of products: `storage` in products.c
MIN_PACKED_ROWS = 8  # of all steps together; for fewer rows, matrices are read in place, not packed
# (numbers, rows): threads share the columns of a matrix of at least so many numbers, if each would have fewer rows.
SHARED_COLUMNS = ((1 << 15, 1), (1 << 18, 4), (1 << 19, 24))


@dataclass(frozen=True, eq=False)
class Packing:
    """Where packed matrices are.

    size     elements in the packed tiles of all matrices
    begins   byte offset of each packed matrix
    sizes    heads, inner and outer size of each matrix, for `pack`
    """

    size: AnySize
    begins: tuple[AnySize, ...]
    sizes: Any

    def valued(self, lengths: Sequence[int]) -> Packing:
        """The packing for these free lengths."""

        def value(size: AnySize) -> int:
            return size.value(lengths) if isinstance(size, Size) else size

        return Packing(value(self.size), tuple(map(value, self.begins)), array("q", map(value, self.sizes)))


@dataclass(frozen=True, eq=False)
class CpuRunner:
    """A built kernel.

    library       waits for the library and the path of its source; it is held as long as its functions may be called
    scratch       bytes of scratch memory for a thread, or for a team of threads
    lengths       how many free lengths it takes
    work          approximate operations of one row in one step
    team_rows     rows for which the scratch memory of a team has room
    rows_alone    rows per thread from which on threads work independently, not as a team
    loaded        slots of the fixed values that the C code reads element by element and needs contiguous; the others
                  are only multiplied
    matrices      for each matrix: the slot of its fixed value, its head, inner and outer axis, and their strides if the
                  value is contiguous (None where it has other axes too)
    packing       of all matrices
    """

    kernel: Kernel
    library: Callable[[], tuple[ctypes.CDLL, Path]]
    scratch: AnySize
    lengths: int
    work: int
    team_rows: int
    rows_alone: int
    loaded: tuple[int, ...]
    matrices: tuple[tuple[int, tuple[int | None, int, int], tuple[int, ...] | None], ...]
    packing: Packing

    @property
    def source(self) -> Path:
        """The path of its C source."""
        return self.library()[1]

    @cached_property
    def address(self) -> int:
        """Of the kernel's function."""
        return native.address_of(self.library()[0].run)

    @cached_property
    def products(self) -> int:
        """The address of the function that multiplies rows with a matrix."""
        return native.address_of(getattr(native.runtime(self.kernel.dtype), f"product_{self._letter}"))

    @cached_property
    def pack(self) -> Callable[[int, int, int], None]:
        """The function that packs matrices."""
        function: Callable[[int, int, int], None] = getattr(native.runtime(self.kernel.dtype), f"pack_{self._letter}")
        return function

    @cached_property
    def totals(self) -> tuple[Buffer, ...]:
        return self.kernel.totals

    @property
    def _letter(self) -> str:
        return native.letter_of(self.kernel.dtype)

    def wait(self) -> None:
        """Until all of it is built; raises EngineRefusal where that failed."""
        _ = self.address, self.products, self.pack

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> BoundKernel:
        held = [*rows, *fixed]
        for slot in self.loaded:
            held[len(rows) + slot] = fixed[slot].contiguous()
        pointers = [value.data_ptr() for value in held]
        words: list[int] = []
        for slot, axes, strides in self.matrices:  # `matrix` in products.c: packed tiles, address, strides
            value = held[len(rows) + slot]
            words += (0, pointers[len(rows) + slot])
            if strides is not None and value.is_contiguous():
                words += strides
            else:
                words += (0 if axis is None else value.stride(axis) for axis in axes)
            words.append(STORAGE.get(value.dtype, 0))
        packed = None
        if self.packing.size != 0 and row_count >= MIN_PACKED_ROWS:
            packing = self.packing
            if isinstance(packing.size, Size):
                packing = packing.valued(row_count.lengths)  # type: ignore[attr-defined]
            packed = self._pack(words, packing)
        words.append(self.products)
        run_kernel, address, scratch, work = native.run_kernel, self.address, self.scratch, self.work
        dtype, totals = self.kernel.dtype, self.totals

        def run(
            states: Sequence[Tensor | None],
            reads: Sequence[Tensor],
            next_states: Sequence[Tensor],
            writes: Sequence[Tensor],
            steps: int,
            batch: int,
            lagged: Sequence[int] = (),
            holds: Any = (held, packed),
        ) -> list[Tensor] | None:
            arguments = [0 if state is None else state.data_ptr() for state in states]  # 0 stands for zeros
            for value in reads:
                arguments.append(value.data_ptr())
            arguments += pointers
            for value in next_states:
                arguments.append(value.data_ptr())
            for value in writes:
                arguments.append(value.data_ptr())
            threads = native.thread_count(steps * batch * work)
            parts = []
            if totals:
                threads = min(threads, batch, MOST_THREADS)
                parts = [torch.zeros((max(threads, 1), *total.sizes), dtype=total.dtype) for total in totals]
                arguments += [part.data_ptr() for part in parts]
            arguments += words
            needed = scratch
            if self.lengths:
                arguments += batch.lengths[: self.lengths]  # type: ignore[attr-defined]
                needed = scratch.value(batch.lengths) if isinstance(scratch, Size) else scratch  # type: ignore[attr-defined]
            if totals:
                arguments.append(threads)
            border, later = _later(arguments, reads, lagged, len(states)) if lagged else (0, None)
            if totals:
                run_kernel(address, arguments, batch, steps, needed, threads, 0, 0, True, dtype, border, later)
                return [part[0] if threads < 2 else part.sum(0) for part in parts]
            team_rows = self.team_rows if batch < threads * self.rows_alone else 0
            run_kernel(address, arguments, batch, steps, needed, threads, team_rows, 0, False, dtype, border, later)
            return None

        return run

    def _pack(self, words: list[int], packing: Packing) -> Tensor:
        """Pack the kernel's matrices into tiles, which the returned tensor holds.

        words   the C structs of the matrices, MATRIX_WORDS each; the addresses of the packed tiles are written here

        While there is an `invariant_cache`, matrices with the same addresses and strides are packed once.
        """
        cache = invariant_cache()
        key = None if cache is None else (id(self), tuple(words))
        if cache is not None and key in cache:
            packed: Tensor = cache[key]
            words[::MATRIX_WORDS] = [packed.data_ptr() + begin for begin in packing.begins]
            return packed
        packed = empty_from_pool((packing.size,), self.kernel.dtype, native.CPU)
        words[::MATRIX_WORDS] = [packed.data_ptr() + begin for begin in packing.begins]
        arguments = array("q", words)
        self.pack(arguments.buffer_info()[0], packing.sizes.buffer_info()[0], len(packing.begins))
        if cache is not None:
            cache[key] = packed
        return packed


def _later(
    arguments: list[int], reads: Sequence[Any], lagged: Sequence[int], first: int
) -> tuple[int, array[int] | None]:
    """The border of the windows that are read in place, and the arguments for the rows above it; 0 and None without.

    lagged   indices of the reads that may be a `LaggedWindow`
    first    the index of the first read among the arguments
    """
    border, later = 0, None
    for index in lagged:
        window = reads[index]
        if window.__class__ is LaggedWindow:
            later = array("q", arguments) if later is None else later
            border, later[first + index] = window.border, window.later
    return border, later


def build(kernel: Kernel) -> CpuRunner:
    """Emit a kernel as C, and begin to compile it."""
    shared = [rows for m in kernel.matrices for size, rows in SHARED_COLUMNS if nominal(m.inner * m.outer) >= size]
    native.build_ahead(kernel.dtype)
    return CpuRunner(
        kernel=kernel,
        library=library_ahead(c_source_of(kernel, vector_bytes()), kernel.name),
        scratch=MemoryLayout(kernel, vector_bytes()).scratch_bytes(),
        lengths=free_lengths(kernel),
        work=sum(map(_work, kernel.blocks)),
        team_rows=rows_together(kernel),
        rows_alone=max(shared, default=0),
        loaded=tuple(sorted(loaded(kernel))),
        matrices=tuple((matrix.fixed, matrix.axes, _strides(matrix, kernel)) for matrix in kernel.matrices),
        packing=_packing(kernel),
    )


def _strides(matrix: Matrix, kernel: Kernel) -> tuple[int, ...] | None:
    """Strides of a contiguous matrix along its head, inner and outer axis.

    None where its value has other axes too, or a free size.

    The stride along the heads is 0 where they share the matrix.
    """
    pairs = zip(matrix.axes, (matrix.heads, matrix.inner, matrix.outer), strict=True)
    sizes = {axis: size for axis, size in pairs if axis is not None}
    free = any(isinstance(size, Size) for size in sizes.values())
    if free or len(sizes) != len(kernel.buffers["fixed"][matrix.fixed].sizes):
        return None
    return tuple(
        0 if axis is None else math.prod(size for other, size in sizes.items() if other > axis) for axis in matrix.axes
    )


def _packing(kernel: Kernel) -> Packing:
    *begins, size = accumulate((_packed_size(matrix, kernel) for matrix in kernel.matrices), initial=0)
    sizes = [size for m in kernel.matrices for size in (m.heads, m.inner, m.outer)]
    fixed = not any(isinstance(size, Size) for size in sizes)
    bytes_at = tuple(begin * kernel.dtype.itemsize for begin in begins)
    return Packing(size, bytes_at, array("q", sizes) if fixed else sizes)


def _packed_size(matrix: Matrix, kernel: Kernel) -> AnySize:
    """Elements of a matrix packed into tiles two vectors wide, the last one padded; at most, if its size is free.

    None of one that is stored narrower, which stays in place.
    """
    if kernel.buffers["fixed"][matrix.fixed].dtype in STORAGE:
        return 0
    tile = 2 * vector_bytes() // kernel.dtype.itemsize
    padded = matrix.outer + tile if isinstance(matrix.outer, Size) else -(-matrix.outer // tile) * tile
    return matrix.heads * matrix.inner * padded


def _work(block: Block) -> int:
    """Approximate operations of a block for one row."""
    if isinstance(block, Product):
        return 2 * nominal(block.heads) * block.inner * block.outer
    sizes = block.sizes if isinstance(block, Pointwise) else (*block.sizes, *block.over)
    return 20 * math.prod(map(nominal, sizes))
