"""The native runtime of the engine: the C code that all kernels share, built once, and `run_kernel`, which runs a
kernel on several threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
from array import array
from typing import Any

import torch
from torch import Tensor

from leporello.engine.cpu.build import compiler_refusal, library, vector_bytes
from leporello.engine.cpu.c_emitter import runtime_text
from leporello.errors import EngineRefusal
from leporello.loop.phases import timed_phase

CPU = torch.device("cpu")
MIN_THREADED_OPERATIONS = 200_000  # less work is not worth a second thread
NO_OPENMP = (0, 0, 0)  # no addresses: threads.c then uses its own pool
PROCESS = os.getpid()  # the process that has torch's threads; the child of a fork does not


_building = threading.Lock()  # so that whoever needs the runtime waits for the thread that builds it already
os.register_at_fork(after_in_child=lambda: globals().update(_building=threading.Lock()))


@functools.cache
def runtime() -> Any:
    """The shared library with products, sums and threads, built or loaded at the first call."""
    with timed_phase("waiting for the shared runtime"), _building:
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
def build_ahead() -> None:
    """Begin to build the runtime in a thread of its own, while a step is traced; nothing if a compiler is missing.

    A failure is told to whoever needs the runtime.
    """

    def build() -> None:
        with contextlib.suppress(EngineRefusal):
            runtime()

    if compiler_refusal() is None:
        threading.Thread(target=build, name="leporello builds its runtime").start()


@functools.cache
def _torch_threads() -> tuple[int, ...]:
    """Addresses of the OpenMP functions that start, number and count torch's threads; zeros if not found."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if re.search(r"/lib(g|i|)omp[^/]*\.so", line)}
    except OSError:
        return NO_OPENMP
    candidates = [path for path in paths if "torch" in path] or sorted(paths)
    if len(candidates) != 1:  # it is not clear which one torch uses
        return NO_OPENMP
    openmp = ctypes.CDLL(candidates[0])
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    if not all(hasattr(openmp, name) for name in names):
        return NO_OPENMP
    return tuple(address_of(getattr(openmp, name)) for name in names)


def thread_count(operations: int) -> int:
    """The threads among which so many operations are divided: torch's number of threads, or 1 for little work."""
    return torch.get_num_threads() if operations > MIN_THREADED_OPERATIONS else 1


def run_kernel(
    address: int, arguments: list[int], rows: int, steps: int, scratch: int, threads: int, team_rows: int
) -> None:
    """Run a kernel on `threads` threads.

    address     of the kernel's function
    arguments   the kernel's arguments, which follow the words of `call` in threads.c
    rows        of the batch, which the threads divide among themselves, for `steps` steps
    scratch     bytes of scratch memory for each thread, or for a team of them
    team_rows   rows that all threads take through the steps together, as a team; 0 where each thread has its own rows
    """
    openmp = _torch_threads() if threads > 1 and os.getpid() == PROCESS else NO_OPENMP
    words = array("q", [address, rows, steps, scratch, threads, team_rows, *openmp])  # `call` in threads.c
    words.extend(arguments)
    if runtime().run_parallel(words.buffer_info()[0]):
        raise MemoryError("no memory for a kernel's threads")


def put_step(sequence: Tensor, step: int, value: Tensor) -> None:
    """Copy a value to one step of a sequence; faster than torch's own for the few elements of a state.

    Both must be contiguous and of one dtype, which is not checked.
    """
    size = value.nbytes
    ctypes.memmove(sequence.data_ptr() + step * size, value.data_ptr(), size)


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
