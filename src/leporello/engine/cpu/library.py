"""`Built`: a kernel as a function over memory, and the pool of threads that runs it.

Knows pointers; knows nothing of graphs.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu.build import library, wide_bytes
from leporello.engine.cpu.source import runtime_text, source_of
from leporello.engine.kernel.description import Block, Kernel, Matrix, Pointwise, Product

FEW_ROWS = 8  # of all steps together: for fewer, matrices are multiplied as they lie in memory
LITTLE = 200_000  # operations: what is less is not worth a second thread
LARGE = 1 << 15  # numbers of a matrix whose columns threads without rows may share


@functools.cache
def runtime() -> Any:
    found, _ = library(runtime_text(wide_bytes()), "runtime")
    pointer = ctypes.c_void_p
    found.run_parallel.argtypes = [pointer, pointer, *[ctypes.c_long] * 4, ctypes.c_int, ctypes.c_int, pointer, pointer]
    for letter in "fd":
        getattr(found, f"pack_{letter}").argtypes = [pointer, pointer, ctypes.c_long, pointer]
    return found


@functools.cache
def _torch_threads() -> tuple[int | None, int | None]:
    """The functions that start and number torch's own threads (OpenMP's), where they can be found."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if re.search(r"/lib(g|i|)omp[^/]*\.so", line)}
    except OSError:
        return None, None
    homes = [path for path in paths if "torch" in path] or sorted(paths)
    if len(homes) != 1:  # nobody knows whose threads they are
        return None, None
    library = ctypes.CDLL(homes[0])
    if not (hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num")):
        return None, None
    return address_of(library.GOMP_parallel), address_of(library.omp_get_thread_num)


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel, built.

    source     the path of its C text
    code       the library, held as long as its functions may be called
    work       operations of a row in a step, about
    columns    whether a matrix is so large that its columns can be shared
    panels     numbers that all matrices take in panels
    sizes      of the matrices, for `pack`
    """

    kernel: Kernel
    source: Path
    code: ctypes.CDLL
    address: int
    scratch: int
    products: int
    work: int
    columns: bool
    panels: int
    sizes: array[int]

    def pack(self, fixed: Sequence[Tensor], rows: int) -> tuple[array[int], Tensor | None]:
        """The kernel's matrices as it is given them, words of memory; in panels unless rows are few.

        rows   how many of all steps together will be multiplied
        """
        words: list[int] = []
        matrices = self.kernel.matrices
        for matrix in matrices:
            value = fixed[matrix.fixed]
            head, inner, outer = matrix.axes
            words += (
                0,
                value.data_ptr(),
                0 if head is None else value.stride(head),
                value.stride(inner),
                value.stride(outer),
            )
        found = array("q", words)
        if rows < FEW_ROWS or not matrices:
            return found, None
        memory = torch.empty(self.panels, dtype=self.kernel.dtype)
        pack = runtime().pack_d if self.kernel.dtype == torch.float64 else runtime().pack_f
        pack(found.buffer_info()[0], self.sizes.buffer_info()[0], len(matrices), memory.data_ptr())
        return found, memory

    def run(self, pointers: list[int], matrices: tuple[array[int], Tensor | None], steps: int, batch: int) -> None:
        """Take all rows through so many steps; memory by place (`PLACES`), contiguous, in the order of the slots."""
        given = array("q", pointers)
        given += matrices[0]
        given.append(self.products)
        threads = torch.get_num_threads() if steps * batch * self.work > LITTLE else 1
        run_kernel(self.address, given, batch, steps, self.scratch, threads, self.columns)


def run_kernel(
    address: int, given: array[int], rows: int, steps: int, scratch: int, threads: int, columns: bool
) -> None:
    """Call a kernel: its rows divided among threads.

    scratch   bytes that each thread needs
    columns   whether threads without rows may help with products
    """
    start, number = _torch_threads() if threads > 1 else (None, None)
    memory = given.buffer_info()[0]
    failed = runtime().run_parallel(address, memory, rows, steps, rows, scratch, threads, columns, start, number)
    if failed:
        raise MemoryError("no memory for a kernel's threads")


def built(kernel: Kernel) -> Built:
    """A kernel, written, compiled and loaded."""
    code, source = library(source_of(kernel, wide_bytes()), kernel.name)
    return Built(
        kernel,
        source,
        code,
        address_of(code.run),
        ctypes.c_long.in_dll(code, "scratch_bytes").value,
        address_of(getattr(runtime(), f"product_{_letter(kernel)}")),
        sum(map(_work, kernel.blocks)),
        any(matrix.inner * matrix.outer >= LARGE for matrix in kernel.matrices),
        sum(_panels(matrix, kernel) for matrix in kernel.matrices),
        array("q", [size for m in kernel.matrices for size in (m.heads, m.inner, m.outer)]),
    )


def _panels(matrix: Matrix, kernel: Kernel) -> int:
    """Numbers that a matrix takes in panels two vectors wide."""
    panel = 2 * wide_bytes() // kernel.dtype.itemsize
    return matrix.heads * matrix.inner * (-(-matrix.outer // panel) * panel)


def _work(block: Block) -> int:
    """Operations of a block for one row, about."""
    if isinstance(block, Product):
        return 2 * block.heads * block.inner * block.outer
    sizes = block.sizes if isinstance(block, Pointwise) else (*block.sizes, *block.over)
    return 20 * math.prod(sizes)


def _letter(kernel: Kernel) -> str:
    return "d" if kernel.dtype == torch.float64 else "f"


def address_of(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found
