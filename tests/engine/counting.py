"""Who did the work of a kernel: the threads that took rows, and those that took columns of a product.

Counted where it happens, in C's own calls: a test that believes to run on several threads can say so.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from leporello.engine.cpu import native

RANGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_long] * 4, ctypes.c_void_p, *[ctypes.c_long] * 2)
MOST = 256


@dataclass
class Call:
    """One call of a kernel: its rows, and for each range of them the thread that took it."""

    rows: int
    taken: list[tuple[int, int, int]] = field(default_factory=list)  # first row, the row behind the last, the thread

    @property
    def threads(self) -> int:
        return len({thread for _, _, thread in self.taken})

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return sorted((first, last) for first, last, _ in self.taken)


def noting(call: Call, address: int | None = None) -> ctypes._FuncPointer:
    """A kernel that notes who calls it for which rows, and hands on to the one at the address."""
    real = RANGE(address) if address else None

    def run(given: int, first: int, last: int, steps: int, batch: int, scratch: int, share: int, shares: int) -> None:
        call.taken.append((first, last, threading.get_native_id()))
        if real is not None:
            real(given, first, last, steps, batch, scratch, share, shares)

    return RANGE(run)


@contextmanager
def counted_rows(patch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """The calls of kernels within; no work is too little for several threads."""
    calls: list[Call] = []
    real = native.run_kernel

    def run_kernel(
        address: int, given: list[int], rows: int, steps: int, scratch: int, threads: int, together: int
    ) -> None:
        calls.append(Call(rows))
        kernel = noting(calls[-1], address)
        real(native.address_of(kernel), given, rows, steps, scratch, threads, together)

    with patch.context() as within:
        within.setattr(native, "MIN_THREADED_OPERATIONS", 0)
        within.setattr(native, "run_kernel", run_kernel)
        yield calls


class Shares:
    """How many shares of products each thread of a team has taken, by its number."""

    def since(self) -> list[int]:
        """The shares of threads 0, 1, … since this was last asked."""
        found = (ctypes.c_long * MOST).in_dll(native.runtime(), "counted")
        shares = list(found)
        ctypes.memset(found, 0, ctypes.sizeof(found))
        while shares and not shares[-1]:
            shares.pop()
        return shares


@contextmanager
def counted_columns(patch: pytest.MonkeyPatch) -> Iterator[Shares]:
    """A runtime of its own, whose teams count; nets made within use it. No work is too little for several threads."""
    text = native.runtime_text(native.vector_bytes())
    for line, more in (
        ("static void divided(", f"long counted[{MOST}];\nstatic void divided("),
        ("    work(job, count * share / shares,", "    counted[share]++;\n    work(job, count * share / shares,"),
    ):
        assert text.count(line) == 1
        text = text.replace(line, more)
    with patch.context() as within:
        within.setattr(native, "MIN_THREADED_OPERATIONS", 0)
        within.setattr(native, "runtime_text", lambda wide: text)
        within.setattr(native, "runtime", functools.cache(native.runtime.__wrapped__))
        shares = Shares()
        shares.since()
        yield shares
