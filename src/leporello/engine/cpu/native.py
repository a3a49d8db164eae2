"""The native runtime of the engine: the C code that all kernels share, built once, and `run_kernel`, which runs a
kernel on several threads."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leporello.engine import lagged
from leporello.engine.cpu.build import compiler_refusal, library_ahead, refuse_no_compiler, vector_bytes
from leporello.engine.cpu.c_emitter import runtime_text
from leporello.errors import EngineRefusal
from leporello.loop.phases import timed_phase

CPU = torch.device("cpu")
MIN_THREADED_OPERATIONS = 200_000  # less work is not worth a second thread
MAX_COPIED_BYTES = (
    1 << 22
)  # by one thread; more is copied by torch's threads, which then look for work for milliseconds
NO_OPENMP = (0, 0, 0)  # no addresses: threads.c then uses its own pool
PROCESS = os.getpid()  # the process that has torch's threads; the child of a fork does not


@functools.cache
def runtime(dtype: torch.dtype = torch.float32) -> Any:
    """The shared library of a dtype with products, sums and threads, built or loaded at the first call."""
    with timed_phase("waiting for the shared runtime"):
        try:
            code, _ = build_ahead(dtype)()
        except EngineRefusal:  # what stood against it may be gone
            build_ahead.cache_clear()
            code, _ = build_ahead(dtype)()
    pointer, letter = ctypes.c_void_p, letter_of(dtype)
    code.run_parallel.argtypes = [pointer]
    getattr(code, f"pack_{letter}").argtypes = [pointer, pointer, ctypes.c_long]
    scratch = getattr(code, f"totals_scratch_{letter}")
    scratch.argtypes, scratch.restype = [pointer, ctypes.c_long, ctypes.c_long], ctypes.c_long
    getattr(code, f"multiply_scratch_{letter}").restype = ctypes.c_long
    return code


def letter_of(dtype: torch.dtype) -> str:
    """The suffix of C functions for a dtype."""
    return "d" if dtype == torch.float64 else "f"


@functools.cache
def build_ahead(dtype: torch.dtype) -> Callable[[], Any]:
    """Begin to build the runtime of a dtype, while a step is traced; what is returned waits for it.

    A failure, or a missing compiler, is told to whoever needs the runtime.
    """
    refusal = compiler_refusal()
    if refusal is not None:
        return refuse_no_compiler
    own = torch.float64 if dtype == torch.float64 else torch.float32
    return library_ahead(lambda: runtime_text(own, vector_bytes()), "runtime")


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
    address: int,
    arguments: list[int],
    rows: int,
    steps: int,
    scratch: int,
    threads: int,
    team_rows: int = 0,
    phases: int = 0,
    fixed: bool = False,
    dtype: torch.dtype = torch.float32,
    border: int = 0,
    later: array[int] | None = None,
) -> None:
    """Run a kernel on `threads` threads.

    address     of the kernel's function
    arguments   the kernel's arguments, which follow the words of `call` in threads.c
    rows        of the batch, which the threads divide among themselves, for `steps` steps
    scratch     bytes of scratch memory for each thread; for all of them together with a team or phases
    team_rows   rows that all threads take through the steps together, as a team; 0 where each thread has its own rows
    phases      of work that threads divide into shares, not rows, and that has no steps; 0 for kernels of steps
    fixed       whether rows are divided into as many ranges as threads, whatever else the processors do
    dtype       whose runtime the kernel uses
    border      a row
    later       the arguments with which rows from `border` on are run; None: all rows have the same
    """
    openmp = _torch_threads() if threads > 1 and os.getpid() == PROCESS else NO_OPENMP
    words = array(
        "q", [address, rows, steps, scratch, threads, team_rows, phases, fixed, border, begin_of(later), *openmp]
    )  # `call` in threads.c
    words.extend(arguments)
    if runtime(dtype).run_parallel(words.buffer_info()[0]):
        raise MemoryError("no memory for a kernel's threads")


def begin_of(words: array[int] | None) -> int:
    """The address of the first word; 0 without words."""
    return 0 if words is None else words.buffer_info()[0]


def put_step(sequence: Tensor, step: int, value: Tensor) -> None:
    """Copy a value to one step of a sequence; faster than torch's own for the few elements of a state.

    Both must be contiguous and of one dtype, which is not checked.
    """
    size = value.nbytes
    ctypes.memmove(sequence.data_ptr() + step * size, value.data_ptr(), size)


def put_shifted(out: Tensor, sequence: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """`lagged.put_shifted`, faster than torch's own for little memory."""
    size = out.nbytes
    if size > MAX_COPIED_BYTES or not sequence.is_contiguous() or not (initial is None or initial.is_contiguous()):
        return lagged.put_shifted(out, sequence, initial, reverse)
    one, to, of = size // len(out), out.data_ptr(), sequence.data_ptr()
    ctypes.memmove(to + (0 if reverse else one), of + (one if reverse else 0), size - one)
    begin = to + (size - one if reverse else 0)
    if initial is None:
        ctypes.memset(begin, 0, one)
    else:
        ctypes.memmove(begin, initial.data_ptr(), one)
    return out


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
