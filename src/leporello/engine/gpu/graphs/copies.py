"""`Copies`: a kernel that copies several pieces of memory in one launch, of any dtypes."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from pathlib import Path

import torch

from leporello.engine.gpu.driver import DeviceFunction, compiled

PIECES = 32  # of a launch
THREADS, WORD_BYTES = 256, 16  # of a block; what a thread copies at once
BLOCKS_PER_PROCESSOR = 8


@functools.cache
def copies_text() -> str:
    """The kernel's source."""
    text = Path(__file__).with_name("copies.cuh").read_text(encoding="utf-8")
    return f"#define PIECES {PIECES}\n#define THREADS {THREADS}\n{text}"


class Copies:
    """The kernel on one device."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        _, code = compiled(copies_text(), "copies", f"sm_{properties.major}{properties.minor}")
        self._function = DeviceFunction(code, device, THREADS, shared=0, cluster=1, cooperative=False)
        self._most_blocks = BLOCKS_PER_PROCESSOR * properties.multi_processor_count

    def __call__(self, to: Sequence[int], source: Sequence[int], sizes: Sequence[int]) -> None:
        """Copy memory from addresses to addresses, in bytes, on the current stream."""
        for first in range(0, len(to), PIECES):
            words, most = piece_words(to, source, sizes, first)
            self._function.launch(words, min(self._most_blocks, max(1, -(-most // (THREADS * WORD_BYTES)))))


def piece_words(to: Sequence[int], source: Sequence[int], sizes: Sequence[int], first: int) -> tuple[array[int], int]:
    """The argument of a launch for the pieces from `first` on, and the bytes of the largest one."""
    end = first + PIECES
    count = min(len(to), end) - first
    rest = (0,) * (PIECES - count)
    words = array("Q", (count, *to[first:end], *rest, *source[first:end], *rest, *sizes[first:end], *rest))
    return words, max(sizes[first:end])
