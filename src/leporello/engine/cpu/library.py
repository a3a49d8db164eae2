"""`Built`: a kernel as a function over memory, and the pool of threads that runs it.

Knows pointers; knows nothing of graphs.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from array import array
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu.build import library, wide_bytes
from leporello.engine.cpu.source import MATRIX_WORDS, runtime_text, source_of
from leporello.engine.kernel.description import Block, Kernel, Matrix, Pointwise, Product
from leporello.engine.memory import room

CPU = torch.device("cpu")
FEW_ROWS = 8  # of all steps together: for fewer, matrices are multiplied as they lie in memory
LITTLE = 200_000  # operations: what is less is not worth a second thread
LARGE = 1 << 15  # numbers of a matrix whose columns threads without rows may share


@functools.cache
def runtime() -> Any:
    found, _ = library(runtime_text(wide_bytes()), "runtime")
    pointer = ctypes.c_void_p
    found.run_parallel.argtypes = [pointer]
    for letter in "fd":
        getattr(found, f"pack_{letter}").argtypes = [pointer, pointer, ctypes.c_long]
    return found


@functools.cache
def _torch_threads() -> tuple[int, int]:
    """The functions that start and number torch's own threads (OpenMP's); zeros where they cannot be found."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if re.search(r"/lib(g|i|)omp[^/]*\.so", line)}
    except OSError:
        return 0, 0
    homes = [path for path in paths if "torch" in path] or sorted(paths)
    if len(homes) != 1:  # nobody knows whose threads they are
        return 0, 0
    library = ctypes.CDLL(homes[0])
    if not (hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num")):
        return 0, 0
    return address_of(library.GOMP_parallel), address_of(library.omp_get_thread_num)


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel, built.

    source     the path of its C text
    code       the library, held as long as its functions may be called
    work       operations of a row in a step, about
    columns    whether a matrix is so large that its columns can be shared
    panels     numbers that all matrices take in panels
    begins     bytes in front of each matrix in panels
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
    begins: tuple[int, ...]
    sizes: array[int]

    def pack(self, words: list[int], rows: int) -> Tensor | None:
        """Bring the kernel's matrices into panels, unless rows are few; what comes back holds them.

        words   of the matrices, five each (`matrix` in products.c), in which the panels' addresses are put
        rows    how many of all steps together will be multiplied
        """
        if rows < FEW_ROWS or not words:
            return None
        memory = room((self.panels,), self.kernel.dtype, CPU)
        words[::MATRIX_WORDS] = [memory.data_ptr() + begin for begin in self.begins]
        given = array("q", words)
        pack = runtime().pack_d if self.kernel.dtype == torch.float64 else runtime().pack_f
        pack(given.buffer_info()[0], self.sizes.buffer_info()[0], len(self.begins))
        return memory

    def run(self, pointers: list[int], steps: int, batch: int) -> None:
        """Take all rows through so many steps.

        pointers   memory by place (`PLACES`), contiguous, in the order of the slots, then the words of the matrices
        """
        threads = torch.get_num_threads() if steps * batch * self.work > LITTLE else 1
        start, number = _torch_threads() if threads > 1 else (0, 0)
        words = [self.address, batch, steps, self.scratch, threads, self.columns, start, number]  # `call` in threads.c
        given = array("q", words + pointers)
        given.append(self.products)
        if runtime().run_parallel(given.buffer_info()[0]):
            raise MemoryError("no memory for a kernel's threads")


def built(kernel: Kernel) -> Built:
    """A kernel, written, compiled and loaded."""
    code, source = library(source_of(kernel, wide_bytes()), kernel.name)
    *begins, panels = accumulate((_panels(matrix, kernel) for matrix in kernel.matrices), initial=0)
    return Built(
        kernel,
        source,
        code,
        address_of(code.run),
        ctypes.c_long.in_dll(code, "scratch_bytes").value,
        address_of(getattr(runtime(), f"product_{_letter(kernel)}")),
        sum(map(_work, kernel.blocks)),
        any(matrix.inner * matrix.outer >= LARGE for matrix in kernel.matrices),
        panels,
        tuple(begin * kernel.dtype.itemsize for begin in begins),
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
