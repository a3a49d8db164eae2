"""The buffer pool: memory for values that never leave an engine, reused instead of going back to the system.

New memory costs a page fault for every page, which in a short sweep is more than what is computed there. A block comes
back to the pool when the last tensor that uses it is gone, whoever held it. `LEPORELLO_KEEP` limits how many megabytes
stay unused at a time.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError

SMALLEST_BYTES = 1 << 16  # smaller allocations are cheap: the system keeps such memory at hand itself
DEFAULT_KEEP_MEGABYTES = 256  # unused at a time, unless LEPORELLO_KEEP says another number
HUGE_PAGE_BYTES = 4 << 20  # from here on huge pages are requested
MAP_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)  # 0 where there are none

_free: dict[int, list[mmap.mmap]] = {}  # by size
_leased: dict[int, _Lease] = {}


class _Lease(weakref.ref[Any]):
    """A weak reference to the view of a block that its tensors hold: its callback returns the block to the pool."""

    __slots__ = ("block",)
    block: mmap.mmap


def empty_from_pool(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor in memory of the host."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < SMALLEST_BYTES or not MAP_FLAGS or not keep_bytes():
        return torch.empty(shape, dtype=dtype, device=device)
    block = _block(_rounded_size(size))
    view = memoryview(block)
    lease = _Lease(view, _return)
    lease.block = block
    _leased[id(lease)] = lease
    return torch.frombuffer(view, dtype=dtype, count=count).view(shape)


@functools.cache
def keep_bytes() -> int:
    """How many unused bytes the pool keeps."""
    value = os.environ.get("LEPORELLO_KEEP") or str(DEFAULT_KEEP_MEGABYTES)
    if not value.isdecimal():
        raise ArgumentError(
            "the variable LEPORELLO_KEEP is no number of megabytes.",
            came=repr(value),
            expected=f"a whole number such as {DEFAULT_KEEP_MEGABYTES}; 0 keeps none",
        )
    return int(value) << 20


def free_bytes() -> int:
    """Bytes of free blocks in the pool."""
    return sum(size * len(blocks) for size, blocks in list(_free.items()))


def clear() -> None:
    """Give the free blocks back to the system."""
    _free.clear()


def _rounded_size(size: int) -> int:
    """A size rounded up by at most an eighth, so that similar sizes share blocks."""
    unit = max(mmap.PAGESIZE, 1 << (size.bit_length() - 4))
    return -(-size // unit) * unit


def _block(size: int) -> mmap.mmap:
    try:
        return _free[size].pop()  # one call: two threads never get the same block
    except (KeyError, IndexError):
        block = mmap.mmap(-1, size, flags=MAP_FLAGS)
        if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block


def _return(lease: _Lease) -> None:
    """A block is free again; where the pool would keep too much, its older free blocks go."""
    _leased.pop(id(lease), None)
    size = len(lease.block)
    if size > keep_bytes():
        return
    if free_bytes() + size > keep_bytes():
        _free.clear()
    _free.setdefault(size, []).append(lease.block)
