"""`room`: memory for values that never leave an engine, used again instead of going back to the system.

New memory costs a fault of the processor for every page of it, which in a short sweep is more than what is computed
there. A block comes back when the last tensor that lies in it is gone, whoever held it. Knows sizes; knows nothing of
what lies in a block.
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

LEAST = 1 << 16  # bytes: what is smaller, the system keeps at hand itself
MOST = 256  # megabytes that lie unused at a time, unless LEPORELLO_KEEP tells another number
PAGES_TOGETHER = 4 << 20  # bytes: from here on large pages are asked for
PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)  # 0 where there are none

_unused: dict[int, list[mmap.mmap]] = {}  # by size
_lent: dict[int, _Lease] = {}


class _Lease(weakref.ref[Any]):
    """Watches the one view of a block that its tensors hold."""

    __slots__ = ("block",)
    block: mmap.mmap


def room(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor whose numbers are not yet written."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < LEAST or not PRIVATE or device.type != "cpu" or not kept():
        return torch.empty(shape, dtype=dtype, device=device)
    block = _block(_rounded(size))
    view = memoryview(block)
    lease = _Lease(view, _back)
    lease.block = block
    _lent[id(lease)] = lease
    return torch.frombuffer(view, dtype=dtype, count=count).view(shape)


@functools.cache
def kept() -> int:
    """Bytes that may lie unused."""
    told = os.environ.get("LEPORELLO_KEEP") or str(MOST)
    if not told.isdecimal():
        raise ArgumentError(
            "the variable LEPORELLO_KEEP is no number of megabytes.",
            came=repr(told),
            expected=f"a whole number such as {MOST}; 0 keeps none",
        )
    return int(told) << 20


def unused() -> int:
    """Bytes that are kept for the next sweep."""
    return sum(size * len(blocks) for size, blocks in list(_unused.items()))


def clear() -> None:
    """Give what is unused back to the system."""
    _unused.clear()


def _rounded(size: int) -> int:
    """Sizes that are almost the same share their blocks: an eighth apart at most."""
    unit = max(mmap.PAGESIZE, 1 << (size.bit_length() - 4))
    return -(-size // unit) * unit


def _block(size: int) -> mmap.mmap:
    try:
        return _unused[size].pop()  # one call, so two threads never get the same
    except (KeyError, IndexError):
        block = mmap.mmap(-1, size, flags=PRIVATE)
        if size >= PAGES_TOGETHER and hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block


def _back(lease: _Lease) -> None:
    """A block is free again; where too much would lie unused, what others left goes."""
    _lent.pop(id(lease), None)
    size = len(lease.block)
    if size > kept():
        return
    if unused() + size > kept():
        _unused.clear()
    _unused.setdefault(size, []).append(lease.block)
