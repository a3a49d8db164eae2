"""Who did the work of a kernel: the threads that took rows, and those that took columns of a product.

Counted where it happens, in C's own calls: a test that believes to run on several threads can say so.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from leporello.engine.cpu import native

RANGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_long] * 4, ctypes.c_void_p, *[ctypes.c_long] * 2)
MOST = 256
DTYPES = (torch.float32, torch.float64)


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


def noting(
    call: Call, address: int | None = None, *, seconds: float = 0.0, before: Callable[[], None] | None = None
) -> ctypes._FuncPointer:
    """A kernel that notes who calls it for which rows, and hands on to the one at the address.

    seconds   that it sleeps; `before` is called in front of that
    """
    real = RANGE(address) if address else None

    def run(given: int, first: int, last: int, steps: int, batch: int, scratch: int, share: int, shares: int) -> None:
        call.taken.append((first, last, threading.get_native_id()))
        if before is not None:
            before()
        if seconds:
            time.sleep(seconds)
        if real is not None:
            real(given, first, last, steps, batch, scratch, share, shares)

    return RANGE(run)


@contextmanager
def lost_at_most(nanoseconds: int) -> Iterator[None]:
    """What a call may lose to other programs before the next ones run on the pool of our own threads.

    None has lost too much at the beginning.
    """
    for dtype in DTYPES:
        ctypes.c_long.in_dll(native.runtime(dtype), "pool_until").value = 0
    limits = [ctypes.c_long.in_dll(native.runtime(dtype), "most_lost") for dtype in DTYPES]
    before = [limit.value for limit in limits]
    for limit in limits:
        limit.value = nanoseconds
    yield
    for limit, value in zip(limits, before, strict=True):
        limit.value = value


FOREVER = 1 << 60  # nanoseconds: the machine counts as quiet, whoever computes beside the tests


@contextmanager
def counted_rows(patch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """The calls of kernels within; no work is too little for several threads."""
    calls: list[Call] = []
    real = native.run_kernel

    def run_kernel(
        address: int, given: list[int], rows: int, steps: int, scratch: int, threads: int, *team: int, **how: Any
    ) -> None:
        calls.append(Call(rows))
        kernel = noting(calls[-1], address)
        real(native.address_of(kernel), given, rows, steps, scratch, threads, *team, **how)

    with patch.context() as within:
        within.setattr(native, "MIN_THREADED_OPERATIONS", 0)
        within.setattr(native, "run_kernel", run_kernel)
        with lost_at_most(FOREVER):
            yield calls


class Shares:
    """How many shares of products each thread of a team has taken, by its number."""

    def since(self) -> list[int]:
        """The shares of threads 0, 1, … since this was last asked."""
        shares = [0] * MOST
        for dtype in DTYPES:
            found = (ctypes.c_long * MOST).in_dll(native.runtime(dtype), "counted")
            shares = [one + more for one, more in zip(shares, found, strict=True)]
            ctypes.memset(found, 0, ctypes.sizeof(found))
        while shares and not shares[-1]:
            shares.pop()
        return shares


@contextmanager
def counted_columns(patch: pytest.MonkeyPatch) -> Iterator[Shares]:
    """A runtime of its own, whose teams count; nets made within use it. No work is too little for several threads."""
    plain = native.runtime_text

    def counting(dtype: torch.dtype, wide: int) -> str:
        text = plain(dtype, wide)
        for line, more in (
            ("static void divided(", f"long counted[{MOST}];\nstatic void divided("),
            ("    work(job, count * share / shares,", "    counted[share]++;\n    work(job, count * share / shares,"),
        ):
            assert text.count(line) == 1
            text = text.replace(line, more)
        return text

    with patch.context() as within:
        within.setattr(native, "MIN_THREADED_OPERATIONS", 0)
        within.setattr(native, "runtime_text", counting)
        for name in ("runtime", "build_ahead"):
            within.setattr(native, name, functools.cache(getattr(native, name).__wrapped__))
        shares = Shares()
        shares.since()
        with lost_at_most(FOREVER):
            yield shares
