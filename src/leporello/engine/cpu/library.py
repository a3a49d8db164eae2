"""`Built`: a kernel as a function over memory, and the pool of threads that runs it.

Knows pointers; knows nothing of graphs.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu.build import library, wide_bytes
from leporello.engine.cpu.source import runtime_text, source_of
from leporello.engine.kernel.description import Kernel


@functools.cache
def _runtime() -> Any:
    found, _ = library(runtime_text(wide_bytes()), "runtime")
    pointer = ctypes.c_void_p
    found.run_parallel.argtypes = [pointer, pointer, *[ctypes.c_long] * 4, ctypes.c_int, pointer, pointer]
    for letter in "fd":
        getattr(found, f"pack_{letter}").argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_long] * 4]
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
    return _address(library.GOMP_parallel), _address(library.omp_get_thread_num)


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel, built.

    source   the path of its C text
    """

    kernel: Kernel
    source: Path
    code: ctypes.CDLL
    address: int
    scratch: int
    products: int

    def pack(self, fixed: Sequence[Tensor], rows: int) -> list[Tensor]:
        """The kernel's matrices in panels.

        rows   how many rows of all steps together will be multiplied
        """
        found = []
        size = self.kernel.dtype.itemsize
        panel = 2 * wide_bytes() // size
        pack = getattr(_runtime(), f"pack_{_letter(self.kernel)}")
        for matrix in self.kernel.matrices:
            value = fixed[matrix.fixed]
            count = matrix.inner * (-(-matrix.outer // panel) * panel)
            to = torch.empty(matrix.heads * count, dtype=self.kernel.dtype)
            along = [0 if axis is None else value.stride(axis) for axis in matrix.axes]
            for head in range(matrix.heads):
                begin = value.data_ptr() + head * along[0] * size
                pack(to.data_ptr() + head * count * size, begin, matrix.inner, matrix.outer, along[1], along[2])
            found.append(to)
        return found

    def run(self, pointers: Sequence[int], matrices: Sequence[Tensor], steps: int, batch: int) -> None:
        """Take all rows through so many steps; memory by place (`PLACES`), contiguous, in the order of the slots."""
        words = [*pointers, *(value.data_ptr() for value in matrices), self.products]
        given = (ctypes.c_void_p * len(words))(*words)
        threads = torch.get_num_threads()
        own = _torch_threads() if threads > 1 else (None, None)
        failed = _runtime().run_parallel(self.address, given, batch, steps, batch, self.scratch, threads, *own)
        if failed:
            raise MemoryError("no memory for a kernel's threads")


def built(kernel: Kernel) -> Built:
    """A kernel, written, compiled and loaded."""
    code, source = library(source_of(kernel, wide_bytes()), kernel.name)
    return Built(
        kernel,
        source,
        code,
        _address(code.run),
        ctypes.c_long.in_dll(code, "scratch_bytes").value,
        _address(getattr(_runtime(), f"product_{_letter(kernel)}")),
    )


def _letter(kernel: Kernel) -> str:
    return "d" if kernel.dtype == torch.float64 else "f"


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found
