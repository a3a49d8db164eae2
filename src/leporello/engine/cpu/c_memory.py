"""`Layout`: the memory of a kernel as C sees it: names of buffers, strides, and the order in which pointers are given.

Knows the buffers of a kernel; knows nothing of the statements that use them.
"""

from __future__ import annotations

from leporello.engine.cpu.c_operators import TYPES
from leporello.kernel.dependencies import ahead, carried
from leporello.kernel.description import Buffer, Kernel, Product

PLACES = ("state", "read", "row", "fixed", "next", "write")  # the order of the pointers
MATRIX_WORDS = 5  # of a matrix, behind them
TOGETHER = 24  # rows that one thread takes through a step together, at most
TOGETHER_IF_LARGE = 64  # where matrices do not stay in the cache: each is read once a step for all of them
LARGE = 1 << 18  # numbers of all matrices
LARGER = 1 << 19  # numbers that leave no place in the cache for what the next step reads
ENDINGS = {"next": "_next", "write": "_out", "state": "_state"}  # of names, by place


def together(kernel: Kernel) -> int:
    """Rows that are taken through a step together, at most."""
    return TOGETHER_IF_LARGE if _numbers(kernel) >= LARGE else TOGETHER


def _numbers(kernel: Kernel) -> int:
    """Of all matrices."""
    return sum(matrix.heads * matrix.inner * matrix.outer for matrix in kernel.matrices)


class Layout:
    """Where everything lies.

    real    C's type of the kernel's numbers
    wide    numbers in a vector
    ahead   the blocks that run for several steps together
    names   of buffers, as they are at one step
    carried values that stay in registers and have no memory
    own     the step's own memory
    asks    whether what the next step reads is asked for at this one
    slots   where in `given` the pointers stand; a matrix takes the words of `matrix` in products.c
    """

    def __init__(self, kernel: Kernel, wide_bytes: int) -> None:
        self.kernel = kernel
        self.real = TYPES[kernel.dtype]
        self.wide = wide_bytes // kernel.dtype.itemsize
        self.together = together(kernel)
        self.ahead = ahead(kernel)
        self.names = _names(kernel)
        self.carried = carried(kernel)
        places = ("state", "next", "scratch")
        self.own = [buffer for place in places for buffer in kernel.buffers[place] if buffer not in self.carried]
        self.asks = 0 < _numbers(kernel) < LARGER
        self.next_step = "-" if kernel.reverse else "+"
        self.slots = _slots(kernel)

    def memory(self, buffer: Buffer) -> str:
        """The name of the step's own memory, from its beginning."""
        return f"{self.names[buffer]}_memory"

    def element(self, buffer: Buffer, index: str) -> str:
        """One number of a buffer, of the row at hand."""
        row = "" if buffer.place == "fixed" else f"row * {self.stride(buffer)} + "
        return f"{self.names[buffer]}[{row}{index}]"

    def stride(self, buffer: Buffer) -> int:
        """Elements from row to row: whole panels behind the last value, where the step's own memory is meant."""
        return self.padded(buffer.count) if buffer.place in ("scratch", "state", "next") else buffer.count

    def padded(self, count: int) -> int:
        """So many elements in whole panels, and one panel more."""
        panel = 2 * self.wide
        return -(-count // panel) * panel + panel

    def own_bytes(self, buffer: Buffer) -> int:
        """Of the step's own memory of a value, for all rows that are taken together."""
        return -(-self.together * self.stride(buffer) * buffer.dtype.itemsize // 64) * 64

    def gathered_bytes(self) -> int:
        """For the rows of several steps that products ahead multiply."""
        lefts = [block.left for block in self.ahead if isinstance(block, Product) and block.left.place != "scratch"]
        size = self.kernel.dtype.itemsize
        return max((self.together * self.padded(left.count) * size for left in lefts), default=0)

    def scratch_bytes(self) -> int:
        """All that a thread needs; 64 to begin at a line of the cache."""
        return sum(map(self.own_bytes, self.own)) + self.gathered_bytes() + 64


def _names(kernel: Kernel) -> dict[Buffer, str]:
    """The user's names, told apart by place and by number."""
    names: dict[Buffer, str] = {}
    taken: set[str] = set()
    for own in kernel.buffers.values():
        for buffer in own:
            letters = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in buffer.name)
            wish = f"v_{letters}{ENDINGS.get(buffer.place, '')}"
            name, count = wish, 1
            while name in taken:
                name, count = f"{wish}_{count}", count + 1
            taken.add(name)
            names[buffer] = name
    return names


def _slots(kernel: Kernel) -> dict[tuple[str, int], int]:
    found, count = {}, 0
    for place in PLACES:
        for buffer in kernel.buffers[place]:
            found[place, buffer.slot] = count
            count += 1
    for index in range(len(kernel.matrices)):
        found["matrix", index] = count + index * MATRIX_WORDS
    found["products", 0] = count + len(kernel.matrices) * MATRIX_WORDS
    return found
