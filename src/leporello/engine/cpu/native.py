"""The native runtime of the engine: the C that all kernels share, built once, and the threads that run a kernel."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from array import array
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu.build import library, vector_bytes
from leporello.engine.cpu.c_emitter import runtime_text

CPU = torch.device("cpu")
OPERATIONS_PER_THREAD = 200_000  # less work than this is not worth a second thread
NO_THREADS = (0, 0, 0)  # of torch
PROCESS = os.getpid()  # where torch's threads are; in the child of a fork they are not


@functools.cache
def runtime() -> Any:
    """The shared library with products, sums and threads."""
    code, _ = library(runtime_text(vector_bytes()), "runtime")
    pointer = ctypes.c_void_p
    code.run_parallel.argtypes = [pointer]
    for letter in "fd":
        getattr(code, f"pack_{letter}").argtypes = [pointer, pointer, ctypes.c_long]
        scratch = getattr(code, f"totals_scratch_{letter}")
        scratch.argtypes, scratch.restype = [pointer, ctypes.c_long, ctypes.c_long], ctypes.c_long
        getattr(code, f"multiply_scratch_{letter}").restype = ctypes.c_long
    return code


@functools.cache
def _torch_threads() -> tuple[int, ...]:
    """The functions that start, number and count torch's own threads (OpenMP's); zeros where they cannot be found."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if re.search(r"/lib(g|i|)omp[^/]*\.so", line)}
    except OSError:
        return NO_THREADS
    candidates = [path for path in paths if "torch" in path] or sorted(paths)
    if len(candidates) != 1:  # it is not clear whose threads they are
        return NO_THREADS
    openmp = ctypes.CDLL(candidates[0])
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    if not all(hasattr(openmp, name) for name in names):
        return NO_THREADS
    return tuple(address_of(getattr(openmp, name)) for name in names)


def thread_count(operations: int) -> int:
    """How many threads so much work is divided among."""
    return torch.get_num_threads() if operations > OPERATIONS_PER_THREAD else 1


def run_kernel(
    address: int, arguments: list[int], rows: int, steps: int, scratch: int, threads: int, team_rows: int
) -> None:
    """Call a kernel on so many threads.

    arguments   what the kernel reads behind the words of `call` in threads.c
    scratch     bytes that each thread needs, or a team of them
    team_rows   rows that all threads take through the steps together; 0 where each thread has rows of its own
    """
    openmp = _torch_threads() if threads > 1 and os.getpid() == PROCESS else NO_THREADS
    words = array("q", [address, rows, steps, scratch, threads, team_rows, *openmp])  # `call` in threads.c
    words.extend(arguments)
    if runtime().run_parallel(words.buffer_info()[0]):
        raise MemoryError("no memory for a kernel's threads")


def put_step(sequence: Tensor, step: int, value: Tensor) -> None:
    """Copy a value to one step of a sequence; faster than torch's own for the few numbers of a state."""
    size = value.nbytes
    ctypes.memmove(sequence.data_ptr() + step * size, value.data_ptr(), size)


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
