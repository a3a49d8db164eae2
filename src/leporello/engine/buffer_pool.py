"""The buffer pool: memory for values that never leave an engine, reused instead of freed.

New memory costs a page fault for every page, which in a short sweep takes longer than the computation. A block returns
to the pool when the last tensor that uses it is freed. `LEPORELLO_KEEP` limits the megabytes of unused blocks.
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

MIN_POOLED_BYTES = 1 << 18  # smaller allocations are cheap: malloc reuses such memory itself
KEEP_SHARE = 8  # unused blocks may take this part of the machine's memory, unless LEPORELLO_KEEP is set
KEEP_MEGABYTES = (256, 1024)  # at least, and at most
MIN_HUGE_PAGE_BYTES = 4 << 20  # huge pages are requested for blocks of at least this size
MAP_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)  # 0 on systems without them

_free: dict[int, list[mmap.mmap]] = {}  # by size
_leased: dict[int, _Lease] = {}


class _Lease(weakref.ref[Any]):
    """A weak reference to the view of a block that its tensors hold: its callback returns the block to the pool."""

    __slots__ = ("block",)
    block: mmap.mmap


def empty_from_pool(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor in host memory: from the pool, or from torch if it is small or nothing is pooled.

    device   a device of host memory
    """
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < MIN_POOLED_BYTES or not MAP_FLAGS or not keep_bytes():
        return torch.empty(shape, dtype=dtype, device=device)
    block = _block(_rounded_size(size))
    view = memoryview(block)
    lease = _Lease(view, _return)
    lease.block = block
    _leased[id(lease)] = lease
    return torch.frombuffer(view, dtype=dtype, count=count).view(shape)


@functools.cache
def keep_bytes() -> int:
    """The number of unused bytes that the pool keeps at most."""
    value = os.environ.get("LEPORELLO_KEEP") or str(default_keep_megabytes())
    if not value.isdecimal():
        raise ArgumentError(
            "the variable LEPORELLO_KEEP is no number of megabytes.",
            came=repr(value),
            expected=f"a whole number such as {default_keep_megabytes()}; 0 keeps none",
        )
    return int(value) << 20


def default_keep_megabytes() -> int:
    """How much the pool keeps on this machine; the least where its memory is not known."""
    least, most = KEEP_MEGABYTES
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (AttributeError, OSError, ValueError):
        return least
    return min(most, max(least, memory // KEEP_SHARE))


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
    """A free block of this size from the pool, or a new one."""
    try:
        return _free[size].pop()  # atomic: two threads never get the same block
    except (KeyError, IndexError):
        block = mmap.mmap(-1, size, flags=MAP_FLAGS)
        if size >= MIN_HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block


def _return(lease: _Lease) -> None:
    """Put a block back into the pool, unless it alone exceeds the limit.

    Where the sum does, blocks of the sizes that came back longest ago are released.
    """
    _leased.pop(id(lease), None)
    size = len(lease.block)
    if size > keep_bytes():
        return
    blocks = _free.pop(size, [])
    while _free and free_bytes() + size * (len(blocks) + 1) > keep_bytes():
        _free.pop(next(iter(_free), 0), None)
    if size * (len(blocks) + 1) <= keep_bytes():
        blocks.append(lease.block)
    _free[size] = blocks  # behind the others
