"""What a computation costs, measured: seconds, and bytes at the peak.

Bytes are those of torch's own allocator: its allocations and releases are replayed to find the peak above the level at
the start. What libraries allocate on their own, such as the scratch memory of matrix products, is not seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from leporello.engine import buffer_pool
from leporello.loop.phases import no_garbage_collection

Result = TypeVar("Result")

QUIET_PROFILER = ("KINETO_LOG_LEVEL", "6")  # below this level the profiler writes lines to standard error


def timed(compute: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """The result, and the seconds until the device has computed it."""
    _synchronize(device)
    start = time.perf_counter()
    result = compute()
    _synchronize(device)
    return result, time.perf_counter() - start


def peak_bytes(compute: Callable[[], Any], device: torch.device) -> int | None:
    """The most memory in use at once, above what was in use before; None on a device where nothing counts it."""
    with no_garbage_collection():
        return _peak_bytes(compute, device)


def _peak_bytes(compute: Callable[[], Any], device: torch.device) -> int | None:
    if device.type == "cuda":
        _synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        compute()
        _synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not torch.profiler.kineto_available():
        return None
    with _quiet(), _without_reused_blocks(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        compute()
    profiler: Any = record.profiler
    changes = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        level += change.nbytes()
        peak = max(peak, level)
    return peak


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _without_reused_blocks() -> Iterator[None]:
    """Make engines allocate from torch: the profiler does not see the blocks of memory that they reuse."""
    before, buffer_pool.MAP_FLAGS = buffer_pool.MAP_FLAGS, 0
    try:
        yield
    finally:
        buffer_pool.MAP_FLAGS = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler from writing to standard error, unless the user has set its level."""
    name, level = QUIET_PROFILER
    before = os.environ.get(name)
    os.environ.setdefault(name, level)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
