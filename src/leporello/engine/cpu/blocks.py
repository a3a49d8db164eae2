"""Blocks of a kernel as C: a product is a call, the others are loops over the features of each row.

Knows blocks and where their values lie; knows nothing of steps, or of when a block runs.
"""

from __future__ import annotations

from leporello.engine.cpu.body import Body
from leporello.engine.cpu.layout import Layout
from leporello.engine.cpu.spelling import GATHERED, TYPES, ends
from leporello.engine.kernel.description import (
    Block,
    Buffer,
    Pointwise,
    Product,
    Reduction,
    dtype_of_expression,
)
from leporello.engine.kernel.reads import read
from leporello.errors import EngineRefusal

LINE = 64  # bytes of the cache that come together


class BlockLines:
    """Lines of blocks while they are written."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.lines: list[str] = []
        self.asked: set[Buffer] = set()

    def say(self, line: str, depth: int = 0) -> None:
        self.lines.append("    " * depth + line)

    def block(self, block: Block) -> None:
        """A block of one step, for the rows of one's share."""
        names = self.layout.names
        if isinstance(block, Product):
            self.product(block, names[block.left], names[block.out], "rows", 4)
        else:
            self.say("for (long row = from; row < to; row++) {", 4)
            if isinstance(block, Pointwise):
                self._ask(block)
                self._pointwise(block)
            else:
                self._reduction(block)
            self.say("}", 4)

    def product(self, block: Product, left: str, out: str, rows: str, depth: int, stride: int | None = None) -> None:
        """A product of rows that lie at `left`, so many elements apart; by default as its layout says."""
        slot = self.layout.slots["matrix", block.matrix]
        heads = "" if block.heads == 1 else f"for (long head = 0; head < {block.heads}; head++) "
        head = "0" if block.heads == 1 else "head"
        stride = self.layout.stride(block.left) if stride is None else stride
        self.say(
            f"{heads}product(given + {slot}, {head}, {rows}, {block.inner}, {block.outer}, "
            f"{left} + {block.offset} + {head} * {block.inner}, {stride}, "
            f"{out} + {head} * {block.outer}, {self.layout.stride(block.out)});",
            depth,
        )

    def _ask(self, block: Pointwise) -> None:
        """Ask for what this row reads of its sequences at the next step, so that it comes while products run."""
        far = self.layout.next_step
        for buffer in sorted(read(block) - self.asked, key=lambda buffer: buffer.slot):
            size = buffer.count * buffer.dtype.itemsize
            if buffer.place != "read" or size < LINE or not self.layout.asks:
                continue
            self.asked.add(buffer)
            self.say(f"for (long line = 0; line < {size}; line += {LINE})", 5)
            there = f"{self.layout.names[buffer]} + (row {far} batch) * {buffer.count}"
            self.say(f"__builtin_prefetch((const char *)({there}) + line, 0, 2);", 6)

    def _pointwise(self, block: Pointwise) -> None:
        body = Body(self.layout)
        for store in block.stores:
            value = body.value(store.value)
            kind = TYPES[store.buffer.dtype]
            name = body.kept(value, kind)
            if store.buffer not in self.layout.carried:
                body.lines.append(f"{self.layout.element(store.buffer, str(store.index))} = {name};")
            body.known[store.buffer, store.index] = name
        for text in body.outside:
            self.say(text, 5)
        depth = self._loops(block.sizes, "i", 5)
        for text in body.lines:
            self.say(text, depth)
        self._close(depth, 5)

    def _reduction(self, block: Reduction) -> None:
        kind = TYPES[block.buffer.dtype]
        body = Body(self.layout)
        value = body.value(block.value)
        for text in body.outside:
            self.say(text, 5)
        depth = self._loops(block.sizes, "i", 5)
        if block.operator in GATHERED:
            begin, going = GATHERED[block.operator]
            self.say(f"{kind} sum = {begin.format(**ends(block.buffer.dtype))};", depth)
            inner = self._loops(block.over, "k", depth, simd="sum" if block.operator == "sum" else "")
            for text in body.lines:
                self.say(text, inner)
            value = f"{value} != 0" if block.operator in ("any", "all") else value
            self.say(f"const {kind} value = {value};", inner)
            self.say(f"sum = {going};", inner)
        else:  # the first place of the largest or smallest; a NaN counts as such
            if len(block.over) != 1:
                raise EngineRefusal(f"the operator {block.operator} over several axes is not covered by kernels.")
            sign, own = ">" if block.operator == "argmax" else "<", TYPES[dtype_of_expression(block.value)]
            self.say(f"{own} best = 0; int64_t sum = -1;", depth)
            inner = self._loops(block.over, "k", depth)
            for text in body.lines:
                self.say(text, inner)
            k = "k0" if block.over[0] > 1 else "0"
            self.say(f"const {own} value = {value};", inner)
            better = f"value {sign} best || value != value"
            self.say(f"if (sum < 0 || (best == best && ({better}))) {{ best = value; sum = {k}; }}", inner)
        self._close(inner, depth)
        self.say(f"{self.layout.element(block.buffer, str(block.index))} = sum;", depth)
        self._close(depth, 5)

    def _loops(self, sizes: tuple[int, ...], letter: str, depth: int, simd: str = "") -> int:
        """Open a loop for each axis that has more than one place; how deep the lines inside stand."""
        real = [(axis, size) for axis, size in enumerate(sizes) if size != 1]
        for place, (axis, size) in enumerate(real):
            if place == len(real) - 1:
                pragma = f"#pragma omp simd reduction(+:{simd})" if simd else "#pragma GCC ivdep"
                if simd or letter == "i":
                    self.say(pragma, depth)
            self.say(f"for (long {letter}{axis} = 0; {letter}{axis} < {size}; {letter}{axis}++) {{", depth)
            depth += 1
        return depth

    def _close(self, depth: int, to: int) -> None:
        while depth > to:
            depth -= 1
            self.say("}", depth)
