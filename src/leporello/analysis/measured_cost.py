"""What a computation costs: seconds, and bytes at the peak.

Bytes are those of torch's own allocator, handed out and taken back, replayed to find the peak above the level at the
start. Blind to what libraries allocate on their own, such as the scratch memory of matrix products. Knows nothing of
what is computed.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from leporello.engine import memory

Found = TypeVar("Found")

QUIET = ("KINETO_LOG_LEVEL", "6")  # below it the profiler writes lines of its own to standard error


def timed(compute: Callable[[], Found], device: torch.device) -> tuple[Found, float]:
    """What it gives, and the seconds it takes until that is there."""
    _finish(device)
    began = time.perf_counter()
    found = compute()
    _finish(device)
    return found, time.perf_counter() - began


def peak_bytes(compute: Callable[[], Any], device: torch.device) -> int | None:
    """The most memory in use at once, above what was in use before; None where nothing counts it."""
    gc.collect()
    if device.type == "cuda":
        _finish(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        compute()
        _finish(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not torch.profiler.kineto_available():
        return None
    with _quiet(), _all_seen(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        compute()
    events: Any = recorded.profiler
    changes = [event for event in events.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        level += change.nbytes()
        peak = max(peak, level)
    return peak


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _all_seen() -> Iterator[None]:
    """Blocks that engines use again are not seen by the profiler: within, they are tensors like others."""
    before, memory.PRIVATE = memory.PRIVATE, 0
    try:
        yield
    finally:
        memory.PRIVATE = before


@contextmanager
def _quiet() -> Iterator[None]:
    name, level = QUIET
    before = os.environ.get(name)
    os.environ.setdefault(name, level)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
