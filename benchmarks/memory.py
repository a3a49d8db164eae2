"""Peak memory of a task, counted to the byte. Knows nothing of cells or tables.

The bytes that torch's allocator hands out and takes back during one call are replayed to find the peak above the level
at its start. Exact for tensors. Blind to what libraries allocate on their own: the scratch memory of matrix products
and of oneDNN, and that of our kernels' threads (some rows of one step, never a sequence).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

from benchmarks.tasks import Task
from leporello.engine import memory

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # below that the profiler writes two lines of its own at each use


def peak_bytes(task: Task) -> int:
    """The most memory in use at once during a call, above what was in use before it."""
    task.clear()
    task()  # whatever is built once is built now
    task.clear()
    gc.collect()
    with _all_seen(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        task()
    task.clear()
    return _peak(_allocations(recorded))


@contextmanager
def _all_seen() -> Iterator[None]:
    """Blocks that our engines use again are not seen by torch's profiler: within, they are tensors like others."""
    before, memory.PRIVATE = memory.PRIVATE, 0
    try:
        yield
    finally:
        memory.PRIVATE = before


def _allocations(recorded: profile) -> list[int]:
    """Bytes handed out (positive) and taken back (negative), in the order of time."""
    events = recorded.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]


def _peak(changes: Sequence[int]) -> int:
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return peak
