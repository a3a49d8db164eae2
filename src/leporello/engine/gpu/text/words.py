"""`Words`: the numbers that a kernel is given, most of them addresses, and where each of them is."""

from __future__ import annotations

from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.text.cuda_expressions import STORAGE
from leporello.kernel.description import Buffer, Place

FIRST_WORDS = 4  # steps, batch, the first group or step of this launch, groups of all launches
MATRIX_WORDS = 4  # address, strides along heads, inner and outer axis
POINTERS: tuple[Place, ...] = ("state", "read", "row", "fixed", "next", "write")


class Words:
    """The words of `Given`: those of a call, addresses of its tensors and matrices, and what a geometry adds.

    words   the index of each: ("state", slot), ("matrix", index), ("vector", index), ...
    """

    def __init__(self, schedule: Schedule) -> None:
        self.words: dict[tuple[str, int], int] = {}
        self.word_count = FIRST_WORDS
        for place in POINTERS:
            for buffer in schedule.kernel.buffers[place]:
                self.add_word((place, buffer.slot))
        for index in range(len(schedule.kernel.matrices)):
            self.add_word(("matrix", index), MATRIX_WORDS)

    def add_word(self, key: tuple[str, int], count: int = 1) -> None:
        self.words[key] = self.word_count
        self.word_count += count

    def pointer(self, buffer: Buffer, place: str | None = None) -> str:
        """The address of a buffer, as C++; `place` where it is not the buffer's own."""
        constant = "" if buffer.place in ("next", "write") and place is None else "const "
        return f"(({constant}{STORAGE[buffer.dtype]} *)given.word[{self.words[place or buffer.place, buffer.slot]}])"
