"""`MemoryLayout`: the buffers of a kernel as C sees them: names, strides, and the order of the pointers."""

from __future__ import annotations

from typing import Literal

from leporello.engine.cpu.c_operators import TYPES
from leporello.kernel.dependencies import blocks_ahead, register_values
from leporello.kernel.description import Buffer, Kernel, Place, Product
from leporello.loop.sizes import AnySize, Size, nominal

POINTER_ORDER: tuple[Place, ...] = ("state", "read", "row", "fixed", "next", "write", "total")
MATRIX_WORDS = 6  # of a matrix, behind the pointers: `matrix` in products.c
MAX_ROWS_TOGETHER = 24  # that one thread takes through a step together
MAX_ROWS_TOGETHER_WITHOUT_STATE = 96  # where no step waits for another: all steps' rows are then one batch
MAX_BYTES_TOGETHER = 1 << 17  # of their scratch values, which stay in the cache
MAX_ROWS_TOGETHER_IF_LARGE = 64  # where matrices do not stay in the cache: each is read once a step for all of them
LARGE_MATRIX_ELEMENTS = 1 << 18  # of all matrices
MAX_PREFETCH_MATRIX_ELEMENTS = 1 << 19  # more leave no place in the cache for what the next step reads
CACHE_LINE_BYTES = 64
NAME_ENDINGS: dict[Place, str] = {"next": "_next", "write": "_out", "state": "_state", "total": "_total"}


def rows_together(kernel: Kernel) -> int:
    """Rows that a thread, or a team of threads, takes through a step together, at most."""
    if not kernel.buffers["state"] and not kernel.buffers["row"]:
        row_bytes = sum(nominal(buffer.count) for buffer in kernel.buffers["scratch"]) * kernel.dtype.itemsize
        fitting = MAX_BYTES_TOGETHER // max(1, row_bytes) // MAX_ROWS_TOGETHER * MAX_ROWS_TOGETHER
        return max(MAX_ROWS_TOGETHER, min(MAX_ROWS_TOGETHER_WITHOUT_STATE, fitting))
    return MAX_ROWS_TOGETHER_IF_LARGE if _matrix_elements(kernel) >= LARGE_MATRIX_ELEMENTS else MAX_ROWS_TOGETHER


def _matrix_elements(kernel: Kernel) -> int:
    return sum(nominal(matrix.heads * matrix.inner * matrix.outer) for matrix in kernel.matrices)


def free_lengths(kernel: Kernel) -> int:
    """How many free lengths the buffers of a kernel have."""
    sizes = [size for buffers in kernel.buffers.values() for buffer in buffers for size in buffer.sizes]
    return 1 + max(
        (index for size in sizes if isinstance(size, Size) for m, _ in size.terms for index in m), default=-1
    )


class MemoryLayout:
    """Where every buffer of a kernel is.

    real         the C type of the kernel's dtype
    lanes        elements of that type in a vector
    ahead        the blocks that run for several steps together
    names        of the C pointers to buffers at the present step
    registers    scratch buffers whose elements stay in registers and have no memory
    own          buffers in the thread's own memory
    prefetches   whether a step prefetches what the next one reads
    next_step    the sign, "+" or "-", of the way from a step's memory to that of the next
    slots        where in `given`, the words passed to the C function, the address of a buffer is, by place and slot;
                 "matrix": where the MATRIX_WORDS of a matrix begin; "products": the function that multiplies;
                 "length": a free length; "units": into how many ranges the rows are divided, where there are totals
    """

    def __init__(self, kernel: Kernel, vector_bytes: int) -> None:
        self.kernel = kernel
        self.real = TYPES[kernel.dtype]
        self.lanes = vector_bytes // kernel.dtype.itemsize
        self.rows_together = rows_together(kernel)
        self.ahead = blocks_ahead(kernel)
        self.names = buffer_names(kernel)
        self.registers = register_values(kernel)
        places: tuple[Place, ...] = ("state", "next", "scratch")
        self.own = [buffer for place in places for buffer in kernel.buffers[place] if buffer not in self.registers]
        self.own += kernel.totals
        self.prefetches = 0 < _matrix_elements(kernel) < MAX_PREFETCH_MATRIX_ELEMENTS
        self.next_step = "-" if kernel.reverse else "+"
        self.slots = _slots(kernel)

    def memory(self, buffer: Buffer) -> str:
        """The name of the C pointer to the beginning of a buffer in the thread's own memory."""
        return f"{self.names[buffer]}_memory"

    def element(self, buffer: Buffer, index: str) -> str:
        """The C text of one element of a buffer, of the present row; `index` is C too."""
        row = "" if buffer.place in ("fixed", "total") else f"row * {self.stride(buffer)} + "
        return f"{self.names[buffer]}[{row}{index}]"

    def stride(self, buffer: Buffer) -> AnySize:
        """Elements from row to row; padded in the thread's own memory, so that products may write whole tiles."""
        return self.padded(buffer.count) if buffer.place in ("scratch", "state", "next") else buffer.count

    def padded(self, count: AnySize) -> AnySize:
        """`count` rounded up to whole tiles, two vectors wide, and one tile more."""
        tile = 2 * self.lanes
        return count + 2 * tile if isinstance(count, Size) else -(-count // tile) * tile + tile

    def own_bytes(self, buffer: Buffer) -> AnySize:
        """Bytes of a buffer in the thread's own memory, for all rows taken together, in whole cache lines."""
        rows = 1 if buffer.place == "total" else self.rows_together
        size = rows * self.stride(buffer) * buffer.dtype.itemsize
        if isinstance(size, Size):
            return size + CACHE_LINE_BYTES  # the C code rounds
        return -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES

    def gathered_bytes(self) -> AnySize:
        """Bytes for the gathered rows of several steps that a product ahead multiplies; 0 if none gathers."""
        lefts = [block.left for block in self.ahead if isinstance(block, Product) and block.left.place != "scratch"]
        size = self.kernel.dtype.itemsize
        sizes = [self.rows_together * self.padded(left.count) * size for left in lefts]
        return sum(sizes) if any(isinstance(size, Size) for size in sizes) else max(sizes, default=0)

    def scratch_bytes(self) -> AnySize:
        """All bytes that a thread needs; with one cache line more, so that they can begin at one."""
        return sum(map(self.own_bytes, self.own)) + self.gathered_bytes() + CACHE_LINE_BYTES


def buffer_names(kernel: Kernel) -> dict[Buffer, str]:
    """A C identifier for each buffer: the user's name, made unique by an ending for its place and a counter."""
    names: dict[Buffer, str] = {}
    taken: set[str] = set()
    for buffers in kernel.buffers.values():
        for buffer in buffers:
            letters = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in buffer.name)
            stem = f"v_{letters}{NAME_ENDINGS.get(buffer.place, '')}"
            name, count = stem, 1
            while name in taken:
                name, count = f"{stem}_{count}", count + 1
            taken.add(name)
            names[buffer] = name
    return names


def _slots(kernel: Kernel) -> dict[tuple[Place | Literal["matrix", "products", "length", "units"], int], int]:
    slots: dict[tuple[Place | Literal["matrix", "products", "length", "units"], int], int] = {}
    for place in POINTER_ORDER:
        for buffer in kernel.buffers.get(place, ()):
            slots[place, buffer.slot] = len(slots)
    count = len(slots)
    for index in range(len(kernel.matrices)):
        slots["matrix", index] = count + index * MATRIX_WORDS
    slots["products", 0] = count + len(kernel.matrices) * MATRIX_WORDS
    for index in range(free_lengths(kernel)):
        slots["length", index] = slots["products", 0] + 1 + index
    slots["units", 0] = slots["products", 0] + 1 + free_lengths(kernel)
    return slots
