"""From the description of a kernel to C: readable, with the user's names, the same text for the same kernel.

Each thread takes its rows through the whole sequence. Sizes of features are constants; length, batch and rows are not.
A product is a call of the runtime, other blocks are loops over the features of each row.
"""

from __future__ import annotations

from importlib import resources
from typing import NoReturn

import torch

from leporello.engine.cpu.c_blocks import BlockWriter
from leporello.engine.cpu.c_memory import CACHE_LINE_BYTES, MemoryLayout, free_lengths
from leporello.engine.cpu.c_operators import TYPES
from leporello.errors import EngineRefusal
from leporello.kernel.dependencies import loaded, read, touched, written
from leporello.kernel.description import (
    Block,
    Buffer,
    Kernel,
    Place,
    Pointwise,
    Product,
    Reduction,
    dtype_of_expression,
)
from leporello.kernel.operators import SEARCHES, SELECTIONS
from leporello.loop.sizes import Size

STEPS_ADDED_UP = 64  # of a total, before they are added to those before


def c_file(name: str) -> str:
    """The text of one of the C files in this folder."""
    return resources.files("leporello.engine.cpu").joinpath(name).read_text(encoding="utf-8")


def runtime_text(dtype: torch.dtype, vector_bytes: int) -> str:
    """The C text that all kernels of one dtype share: products, sums, and the threads."""
    defined = {
        "REAL": TYPES[dtype],
        "SINGLE": int(dtype == torch.float32),
        "INTEGER": "long long" if dtype == torch.float64 else "int",
        "WIDE": vector_bytes // dtype.itemsize,
        "ROWS": tile_rows(vector_bytes),
        "NAME(name)": f"name##_{'d' if dtype == torch.float64 else 'f'}",
    }
    files = ("team.c", "products.c", "stored_products.c", "totals.c", "multiply.c", "threads.c")
    lines = [f"#define {name} {value}" for name, value in defined.items()]
    return "\n".join([*lines, *map(c_file, files)])


def tile_rows(vector_bytes: int) -> int:
    """Rows of a register tile: each holds two vectors of sums in registers, and the factors need some as well."""
    return 12 if vector_bytes == 64 else 6


def c_source_of(kernel: Kernel, vector_bytes: int) -> str:
    """The C text of a kernel, for vectors of so many bytes."""
    refuse_types(kernel)
    return _KernelWriter(kernel, MemoryLayout(kernel, vector_bytes)).text()


def refuse_types(kernel: Kernel) -> None:
    """Raise an `EngineRefusal` for types that this emitter does not cover.

    A dtype must be in `TYPES`, and the same for storage, arithmetic and accumulation. A matrix may be stored narrower.
    """
    element_by_element = loaded(kernel)
    for buffers in kernel.buffers.values():
        for buffer in buffers:
            if buffer.place == "fixed" and buffer.slot not in element_by_element:
                continue
            if buffer.dtype not in TYPES or buffer.arithmetic != buffer.dtype:
                _refuse(f"values stored as {buffer.dtype} and computed in {buffer.arithmetic} ({buffer.name})")
    for block in kernel.blocks:
        if isinstance(block, Product) and {block.arithmetic, block.accumulation} != {kernel.dtype}:
            _refuse(f"products in {block.arithmetic} added in {block.accumulation} ({block.out.name})")
        if isinstance(block, Reduction):
            searched = block.operator in SEARCHES
            dtype = dtype_of_expression(block.value) if searched else block.buffer.dtype
            if block.accumulation != dtype:
                _refuse(f"{block.operator} accumulated in {block.accumulation} ({block.buffer.name})")


def _refuse(what: str) -> NoReturn:
    raise EngineRefusal(f"the engine cpu has no kernels with {what.replace('torch.', '')}.")


class _KernelWriter(BlockWriter):
    """Writes a whole kernel as C: the loops over groups of rows and over steps, and in them the blocks.

    prefetched   sequences whose next step an earlier block prefetches
    """

    layout: MemoryLayout

    def __init__(self, kernel: Kernel, layout: MemoryLayout) -> None:
        super().__init__(layout)
        self.kernel = kernel
        self.prefetched: set[Buffer] = set()

    def text(self) -> str:
        kernel = self.kernel
        self.emit(f"/* {kernel.name}: one inside, {'backwards' if kernel.reverse else 'forwards'} in time.")
        places: tuple[Place, ...] = ("state", "read", "row", "fixed", "write", "total")
        for place in places:
            for buffer in kernel.buffers.get(place, ()):
                kind = str(buffer.dtype).removeprefix("torch.")
                self.emit(f"   {place:<6} {in_comment(buffer.name)} {list(buffer.sizes)} {kind}")
        self.emit("*/")
        self.emit(f"#define REAL {self.layout.real}")
        self.emit(f"#define TOGETHER {self.layout.rows_together}")
        self.lines.append(c_file("functions.c"))
        if any(isinstance(block, Reduction) and block.operator in SELECTIONS for block in kernel.blocks):
            self.lines.append(c_file("selection.c"))
        self.emit("")
        self._runner()
        return "\n".join(self.lines) + "\n"

    def _runner(self) -> None:
        kernel, layout = self.kernel, self.layout
        self.emit("/* of the rows from first to behind last one's share, and of the columns of their products */")
        self.emit("void run(void **given, long first, long last, long steps, long batch, char *scratch, long share,")
        self.emit("         long shares) {")
        self.emit("scratch = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);", 1)
        for index in range(free_lengths(kernel)):
            self.emit(f"const long n{index} = (long)given[{layout.slots['length', index]}];", 1)
        if kernel.matrices:
            self.emit(f"const products product = (products)given[{layout.slots['products', 0]}];", 1)
        for buffer in layout.own:
            self.emit(f"{TYPES[buffer.dtype]} *{layout.memory(buffer)} = (void *)scratch;", 1)
            size = layout.own_bytes(buffer)
            rounded = f"{size} & ~(long){CACHE_LINE_BYTES - 1}" if isinstance(size, Size) else size
            self.emit(f"scratch += {rounded};", 1)
        if layout.gathered_bytes():
            self.emit(f"{layout.real} *gathered = (void *)scratch;", 1)
        totals = kernel.totals
        for buffer in totals:
            self.emit(f"memset({layout.memory(buffer)}, 0, {layout.own_bytes(buffer)});", 1)
        if totals:
            self.emit("/* of this range of rows; share is that of columns */", 1)
            units = f"(long)given[{layout.slots['units', 0]}]"
            self.emit(f"const long unit = (first * {units} + batch - 1) / batch;", 1)
        self.emit("long blocks = (last - first + TOGETHER - 1) / TOGETHER, done = first;", 1)
        self.emit("for (long block = 0; block < blocks; block++) {", 1)
        self.emit("const long at = done, rows = (last - done + blocks - block - 1) / (blocks - block);", 2)
        self.emit("done += rows;", 2)
        self.emit("const long from = rows * share / shares, to = rows * (share + 1) / shares;", 2)
        for buffer in kernel.buffers["state"]:
            begin = f"((const {TYPES[buffer.dtype]} *)given[{layout.slots['state', buffer.slot]}])"
            self._copy(buffer, begin, layout.memory(buffer), into=True)
        self._all_steps()
        for buffer, following in zip(kernel.buffers["state"], kernel.buffers["next"], strict=True):
            last = f"(steps % 2 ? {layout.memory(following)} : {layout.memory(buffer)})"
            end = f"(({TYPES[buffer.dtype]} *)given[{layout.slots['next', buffer.slot]}])"
            self._copy(buffer, end, last, into=False)
        self.emit("}", 1)
        self.emit("}")

    def _copy(self, buffer: Buffer, memory: str, own: str, *, into: bool) -> None:
        """Write the copy of a state between the caller's memory, where a null pointer means zeros, and the thread's.

        memory, own   C pointers to the caller's and to the thread's memory
        into          whether it goes into the thread's memory, at the beginning; else out of it, at the end
        """
        own = f"{own} + row * {self.layout.stride(buffer)}"
        there = f"{memory} + (at + row) * {buffer.count}"
        size = buffer.count * buffer.dtype.itemsize
        if into:
            self.emit("for (long row = from; row < to; row++) {", 2)
            self.emit(f"if ({memory}) memcpy({own}, {there}, {size});", 3)
            self.emit(f"else memset({own}, 0, {size});", 3)
            self.emit("}", 2)
        else:
            self.emit(f"for (long row = from; row < to; row++) memcpy({there}, {own}, {size});", 2)

    # ---- blocks

    def block(self, block: Block) -> None:
        """Write a block of one step, for the rows of one thread's share."""
        names = self.layout.names
        if isinstance(block, Product):
            self.product(block, names[block.left], names[block.out], "rows", 4)
        else:
            self.emit("for (long row = from; row < to; row++) {", 4)
            if isinstance(block, Pointwise):
                self._prefetch(block)
                self.pointwise(block)
            else:
                self.reduction(block)
            self.emit("}", 4)

    def product(self, block: Product, left: str, out: str, rows: str, depth: int, stride: str | None = None) -> None:
        """Write the call of the runtime that computes a product, in a loop over heads where there are several.

        left, out   C pointers to the first row of the factor and of the result
        rows        how many rows, as C
        depth       of indentation
        stride      elements from row to row of `left`, as C; None: as the layout says
        """
        slot = self.layout.slots["matrix", block.matrix]
        heads = "" if block.heads == 1 else f"for (long head = 0; head < {block.heads}; head++) "
        head = "0" if block.heads == 1 else "head"
        own_head = "0" if self.layout.kernel.matrices[block.matrix].heads == 1 else head
        step = self.layout.stride(block.left) if stride is None else stride
        self.emit(
            f"{heads}product(given + {slot}, {own_head}, {rows}, {block.inner}, {block.outer}, "
            f"{left} + {block.offset} + {head} * {block.inner}, {step}, "
            f"{out} + {head} * {block.outer}, {self.layout.stride(block.out)});",
            depth,
        )

    def _prefetch(self, block: Pointwise) -> None:
        """Write prefetches of what this row reads of its sequences at the next step: it arrives while products run."""
        sign = self.layout.next_step
        for buffer in sorted(read(block) - self.prefetched, key=lambda buffer: buffer.slot):
            size = buffer.count * buffer.dtype.itemsize
            if buffer.place != "read" or size < CACHE_LINE_BYTES or not self.layout.prefetches:
                continue
            self.prefetched.add(buffer)
            self.emit(f"for (long line = 0; line < {size}; line += {CACHE_LINE_BYTES})", 5)
            there = f"{self.layout.names[buffer]} + (row {sign} batch) * {buffer.count}"
            self.emit(f"__builtin_prefetch((const char *)({there}) + line, 0, 2);", 6)

    # ---- steps

    def _all_steps(self) -> None:
        """Write the loop over the steps of a group of rows; blocks ahead run for several steps if rows are few."""
        ahead = self.layout.ahead
        most = "TOGETHER / rows" if ahead else "1"
        self.emit(f"const long most = {most};", 2)
        self.emit("for (long begin = 0; begin < steps; begin += most) {", 2)
        self.emit("const long span = steps - begin < most ? steps - begin : most;", 3)
        for block in ahead:
            if isinstance(block, Product):
                self._product_ahead(block)
                continue
            self.emit("for (long step = 0; step < span; step++) {", 3)
            self._step(block)
            self.emit("}", 3)
        self.emit("for (long step = 0; step < span; step++) {", 3)
        self._step(*[block for block in self.kernel.blocks if block not in ahead])
        self.emit("}", 3)
        self._add_up_totals()
        self.emit("}", 2)

    def _add_up_totals(self) -> None:
        """Write the sums of some steps added to those of the steps before: a long sum rounds more."""
        totals, layout = self.kernel.totals, self.layout
        if not totals:
            return
        self.emit(f"if (begin / most % {STEPS_ADDED_UP} == {STEPS_ADDED_UP} - 1 || begin + most >= steps) {{", 3)
        for buffer in totals:
            kind, own = TYPES[buffer.dtype], layout.memory(buffer)
            self.emit(f"{kind} *restrict all_{own} = ({kind} *)given[{layout.slots['total', buffer.slot]}];", 4)
            self.emit(f"for (long i = 0; i < {buffer.count}; i++)", 4)
            self.emit(f"all_{own}[unit * {buffer.count} + i] += {own}[i], {own}[i] = 0;", 5)
        self.emit("}", 3)

    def _step(self, *blocks: Block) -> None:
        """Write blocks of one step, behind the pointers to what they read and write at it."""
        kernel, layout = self.kernel, self.layout
        used = {buffer for block in blocks for buffer in touched(block)}
        self.emit("const long count = begin + step;", 4)
        self.emit(f"const long time = {'steps - 1 - count' if kernel.reverse else 'count'};", 4)
        self.emit("(void)time;", 4)
        for state, following in zip(kernel.buffers["state"], kernel.buffers["next"], strict=True):
            kind, a, b = TYPES[state.dtype], layout.memory(state), layout.memory(following)
            if state in used:
                self.emit(f"{kind} *restrict {layout.names[state]} = count % 2 ? {b} : {a};", 4)
            if following in used:
                self.emit(f"{kind} *restrict {layout.names[following]} = count % 2 ? {a} : {b};", 4)
        places: tuple[Place, ...] = ("read", "row", "fixed", "write")
        for place in places:
            for buffer in kernel.buffers[place]:
                if buffer in used:
                    self._pointer(buffer, layout.slots[place, buffer.slot])
        for buffer in kernel.totals:
            if buffer in used:
                kind = TYPES[buffer.dtype]
                self.emit(f"{kind} *restrict {layout.names[buffer]} = {layout.memory(buffer)};", 4)
        early = {buffer for block in layout.ahead for buffer in written(block)}
        for buffer in kernel.buffers["scratch"]:
            if buffer in used and buffer not in layout.registers:
                offset = f" + step * rows * {layout.stride(buffer)}" if buffer in early else ""
                kind = TYPES[buffer.dtype]
                self.emit(f"{kind} *restrict {layout.names[buffer]} = {layout.memory(buffer)}{offset};", 4)
        for block in blocks:
            self.block(block)

    def _pointer(self, buffer: Buffer, slot: int) -> None:
        """Write the pointer to a buffer in the caller's memory, at this step and this group of rows.

        slot   where its address is in `given`
        """
        kind = TYPES[buffer.dtype]
        constant = "" if buffer.place == "write" else "const "
        offset = {
            "read": f" + (time * batch + at) * {buffer.count}",
            "write": f" + (time * batch + at) * {buffer.count}",
            "row": f" + at * {buffer.count}",
        }.get(buffer.place, "")
        name = self.layout.names[buffer]
        self.emit(f"{constant}{kind} *restrict {name} = ({constant}{kind} *)given[{slot}]{offset};", 4)

    def _product_ahead(self, block: Product) -> None:
        """Write a product for the rows of several steps, which are gathered first where they lie apart.

        In the caller's memory other groups' rows are between those of a step and those of the next.
        """
        left, layout = block.left, self.layout
        out = layout.memory(block.out)
        if left.place == "scratch":
            self.product(block, layout.memory(left), out, "span * rows", 3)
            return
        size, stride = left.count, layout.padded(left.count)
        time = "(steps - 1 - begin - step)" if self.kernel.reverse else "(begin + step)"
        offset = "at" if left.place == "row" else f"({time} * batch + at)"
        source = f"(const {layout.real} *)given[{layout.slots[left.place, left.slot]}] + {offset} * {size}"
        self.emit("{", 3)
        self.emit(f"const {layout.real} *left = gathered;", 4)
        self.emit(f"long stride = {stride};", 4)
        self.emit("for (long step = 0; step < span; step++) {", 4)
        self.emit(f"const {layout.real} *taken = {source};", 5)
        self.emit(f"if (span == 1) left = taken, stride = {size};", 5)
        gathered = f"gathered + (step * rows + row) * {stride}"
        self.emit("else for (long row = from; row < to; row++)", 5)
        self.emit(f"memcpy({gathered}, taken + row * {size}, {size} * sizeof(REAL));", 6)
        self.emit("}", 4)
        self.product(block, "left", out, "span * rows", 4, "stride")
        self.emit("}", 3)


def in_comment(name: str) -> str:
    return name.replace("*/", "* /")
