"""Peak memory of a task, counted to the byte by the library's own counter. Knows nothing of cells or tables.

Exact for tensors. Blind to what libraries allocate on their own: the scratch memory of matrix products and of oneDNN,
and that of our kernels' threads (some rows of one step, never a sequence).
"""

from __future__ import annotations

import gc

import torch

from benchmarks.tasks import Task
from leporello.analysis import measured_cost


def peak_bytes(task: Task) -> int:
    """The most memory in use at once during a call, above what was in use before it."""
    task.clear()
    task()  # whatever is built once is built now
    task.clear()
    gc.collect()  # what is freed while it counts counts as memory that the task has given back
    found = measured_cost.peak_bytes(task, torch.device("cpu"))
    task.clear()
    assert found is not None, "torch's profiler counts memory on every CPU"
    return found
