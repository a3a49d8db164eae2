"""`Built`: a kernel as a function over memory, and the pool of threads that runs it.

Knows pointers; knows nothing of graphs.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu.build import library, wide_bytes
from leporello.engine.cpu.c_emitter import runtime_text, source_of
from leporello.engine.cpu.c_memory import MATRIX_WORDS, together
from leporello.engine.memory import room
from leporello.kernel.description import Block, Kernel, Matrix, Pointwise, Product

CPU = torch.device("cpu")
FEW_ROWS = 8  # of all steps together: for fewer, matrices are multiplied as they lie in memory
LITTLE = 200_000  # operations: what is less is not worth a second thread
SHARED = ((1 << 15, 1), (1 << 18, 4), (1 << 19, 24))  # from so many numbers on, columns of a matrix are divided
#                                                        among threads, if there are fewer rows for each than so many
NO_THREADS = (0, 0, 0)  # of torch
HERE = os.getpid()  # where torch's threads are; in the child of a fork they are not


@functools.cache
def runtime() -> Any:
    found, _ = library(runtime_text(wide_bytes()), "runtime")
    pointer = ctypes.c_void_p
    found.run_parallel.argtypes = [pointer]
    for letter in "fd":
        getattr(found, f"pack_{letter}").argtypes = [pointer, pointer, ctypes.c_long]
        scratch = getattr(found, f"totals_scratch_{letter}")
        scratch.argtypes, scratch.restype = [pointer, ctypes.c_long, ctypes.c_long], ctypes.c_long
        getattr(found, f"multiply_scratch_{letter}").restype = ctypes.c_long
    return found


@functools.cache
def _torch_threads() -> tuple[int, ...]:
    """The functions that start, number and count torch's own threads (OpenMP's); zeros where they cannot be found."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if re.search(r"/lib(g|i|)omp[^/]*\.so", line)}
    except OSError:
        return NO_THREADS
    homes = [path for path in paths if "torch" in path] or sorted(paths)
    if len(homes) != 1:  # nobody knows whose threads they are
        return NO_THREADS
    library = ctypes.CDLL(homes[0])
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    if not all(hasattr(library, name) for name in names):
        return NO_THREADS
    return tuple(address_of(getattr(library, name)) for name in names)


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel, built.

    source     the path of its C text
    code       the library, held as long as its functions may be called
    work       operations of a row in a step, about
    together   rows that its memory has room for
    rows_alone rows that a thread must have to take them alone
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
    together: int
    rows_alone: int
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
        known = _kept.panels
        key = (id(self), tuple(words))
        if known is not None and key in known:
            words[::MATRIX_WORDS] = [known[key].data_ptr() + begin for begin in self.begins]
            return known[key]
        memory = room((self.panels,), self.kernel.dtype, CPU)
        words[::MATRIX_WORDS] = [memory.data_ptr() + begin for begin in self.begins]
        given = array("q", words)
        pack = runtime().pack_d if self.kernel.dtype == torch.float64 else runtime().pack_f
        pack(given.buffer_info()[0], self.sizes.buffer_info()[0], len(self.begins))
        if known is not None:
            known[key] = memory
        return memory

    def run(self, pointers: list[int], steps: int, batch: int) -> None:
        """Take all rows through so many steps.

        pointers   memory by place (`PLACES`), contiguous, in the order of the slots, then the words of the matrices
        """
        threads = worth(steps * batch * self.work)
        together = self.together if batch < threads * self.rows_alone else 0
        run_kernel(self.address, [*pointers, self.products], batch, steps, self.scratch, threads, together)


class _Kept(threading.local):
    """Panels that serve again in this thread; None where each run makes its own."""

    panels: dict[tuple[int, tuple[int, ...]], Tensor] | None = None


_kept = _Kept()


@contextmanager
def same_matrices() -> Iterator[None]:
    """Within, matrices do not change and stay where they are: one that lies where one lay is the same."""
    before, _kept.panels = _kept.panels, {}
    try:
        yield
    finally:
        _kept.panels = before


def worth(operations: int) -> int:
    """How many threads so much work is divided among."""
    return torch.get_num_threads() if operations > LITTLE else 1


def run_kernel(
    address: int, given: list[int], rows: int, steps: int, scratch: int, threads: int, together: int
) -> None:
    """Call a kernel on so many threads.

    scratch    bytes that each thread needs, or a team of them
    together   rows that all threads take through the steps together; 0 where each has rows of its own
    """
    its = _torch_threads() if threads > 1 and os.getpid() == HERE else NO_THREADS
    words = array("q", [address, rows, steps, scratch, threads, together, *its])  # `call` in threads.c
    words.extend(given)
    if runtime().run_parallel(words.buffer_info()[0]):
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
        together(kernel),
        max((rows for m in kernel.matrices for size, rows in SHARED if m.inner * m.outer >= size), default=0),
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
