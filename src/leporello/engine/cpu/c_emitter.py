"""From the description of a kernel to C: readable, with the user's names, the same text for the same kernel.

Each thread takes its rows through the whole sequence. Sizes of features are constants; length, batch and rows are not.
"""

from __future__ import annotations

from importlib import resources

from leporello.engine.cpu.c_expressions import Body
from leporello.engine.cpu.c_memory import Layout
from leporello.engine.cpu.c_operators import GATHERED, TYPES, ends
from leporello.errors import EngineRefusal
from leporello.kernel.dependencies import read, touches, written
from leporello.kernel.description import (
    Block,
    Buffer,
    Kernel,
    Pointwise,
    Product,
    Reduction,
    dtype_of_expression,
)


def part(name: str) -> str:
    """One of the texts that lie beside this file."""
    return resources.files("leporello.engine.cpu").joinpath(name).read_text(encoding="utf-8")


def runtime_text(wide_bytes: int) -> str:
    """What all kernels share: products and sums of both types of numbers, and the threads."""
    lines = []
    for real, integer, letter, size in (("float", "int", "f", 4), ("double", "long long", "d", 8)):
        lines += [f"#define REAL {real}", f"#define WIDE {wide_bytes // size}", f"#define NAME(name) name##_{letter}"]
        lines.append(f"#define INTEGER {integer}")
        lines += [f"#define ROWS {tile_rows(wide_bytes)}", part("products.c"), part("totals.c"), part("multiply.c")]
        lines += [f"#undef {name}" for name in ("REAL", "INTEGER", "WIDE", "NAME", "ROWS")]
    return "\n".join([part("team.c"), "#include <stdint.h>", "#include <string.h>", *lines, part("threads.c")])


def tile_rows(wide_bytes: int) -> int:
    """Rows of a tile: as many as two vectors each leave room for in the registers."""
    return 12 if wide_bytes == 64 else 6


# ---- blocks: a product is a call, the others are loops over the features of each row

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


# ---- rows and steps


def source_of(kernel: Kernel, wide_bytes: int) -> str:
    """The whole text of a kernel."""
    return _Writer(kernel, Layout(kernel, wide_bytes)).text()


class _Writer(BlockLines):
    """Lines of a kernel while they are written."""

    def __init__(self, kernel: Kernel, layout: Layout) -> None:
        super().__init__(layout)
        self.kernel = kernel

    def text(self) -> str:
        kernel = self.kernel
        self.say(f"/* {kernel.name}: one inside, {'backwards' if kernel.reverse else 'forwards'} in time.")
        for place in ("state", "read", "row", "fixed", "write"):
            for buffer in kernel.buffers[place]:
                kind = str(buffer.dtype).removeprefix("torch.")
                self.say(f"   {place:<6} {_spelt(buffer.name)} {list(buffer.sizes)} {kind}")
        self.say("*/")
        self.say(f"#define REAL {self.layout.real}")
        self.say(f"#define TOGETHER {self.layout.together}")
        self.lines.append(part("functions.c"))
        self.say(f"const long scratch_bytes = {self.layout.scratch_bytes()};")
        self.say("")
        self._runner()
        return "\n".join(self.lines) + "\n"

    def _runner(self) -> None:
        kernel, layout = self.kernel, self.layout
        self.say("/* of the rows from first to behind last one's share, and of the columns of their products */")
        self.say("void run(void **given, long first, long last, long steps, long batch, char *scratch, long share,")
        self.say("         long shares) {")
        self.say("scratch = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);", 1)
        if kernel.matrices:
            self.say(f"const products product = (products)given[{layout.slots['products', 0]}];", 1)
        for buffer in layout.own:
            self.say(f"{TYPES[buffer.dtype]} *{layout.memory(buffer)} = (void *)scratch;", 1)
            self.say(f"scratch += {layout.own_bytes(buffer)};", 1)
        if layout.gathered_bytes():
            self.say(f"{layout.real} *gathered = (void *)scratch;", 1)
        self.say("long blocks = (last - first + TOGETHER - 1) / TOGETHER, done = first;", 1)
        self.say("for (long block = 0; block < blocks; block++) {", 1)
        self.say("const long at = done, rows = (last - done + blocks - block - 1) / (blocks - block);", 2)
        self.say("done += rows;", 2)
        self.say("const long from = rows * share / shares, to = rows * (share + 1) / shares;", 2)
        for buffer in kernel.buffers["state"]:
            begin = f"((const {TYPES[buffer.dtype]} *)given[{layout.slots['state', buffer.slot]}])"
            self._copy(buffer, begin, layout.memory(buffer), into=True)
        self._all_steps()
        for buffer, following in zip(kernel.buffers["state"], kernel.buffers["next"], strict=True):
            last = f"(steps % 2 ? {layout.memory(following)} : {layout.memory(buffer)})"
            end = f"(({TYPES[buffer.dtype]} *)given[{layout.slots['next', buffer.slot]}])"
            self._copy(buffer, end, last, into=False)
        self.say("}", 1)
        self.say("}")

    def _copy(self, buffer: Buffer, memory: str, own: str, *, into: bool) -> None:
        """A state between the caller's memory, where 0 stands for zeros, and the step's own."""
        own = f"{own} + row * {self.layout.stride(buffer)}"
        there = f"{memory} + (at + row) * {buffer.count}"
        size = buffer.count * buffer.dtype.itemsize
        if into:
            self.say("for (long row = from; row < to; row++) {", 2)
            self.say(f"if ({memory}) memcpy({own}, {there}, {size});", 3)
            self.say(f"else memset({own}, 0, {size});", 3)
            self.say("}", 2)
        else:
            self.say(f"for (long row = from; row < to; row++) memcpy({there}, {own}, {size});", 2)

    # ---- steps

    def _all_steps(self) -> None:
        """The steps of a block of rows; what waits for no state runs for several of them together, if rows are few."""
        ahead = self.layout.ahead
        most = "TOGETHER / rows" if ahead else "1"
        self.say(f"const long most = {most};", 2)
        self.say("for (long begin = 0; begin < steps; begin += most) {", 2)
        self.say("const long span = steps - begin < most ? steps - begin : most;", 3)
        for block in ahead:
            if isinstance(block, Product):
                self._product_ahead(block)
                continue
            self.say("for (long step = 0; step < span; step++) {", 3)
            self._step(block)
            self.say("}", 3)
        self.say("for (long step = 0; step < span; step++) {", 3)
        self._step(*[block for block in self.kernel.blocks if block not in ahead])
        self.say("}", 3)
        self.say("}", 2)

    def _step(self, *blocks: Block) -> None:
        """Blocks of one step, with the places of what they read and write."""
        kernel, layout = self.kernel, self.layout
        touched = {buffer for block in blocks for buffer in touches(block)}
        self.say("const long count = begin + step;", 4)
        self.say(f"const long time = {'steps - 1 - count' if kernel.reverse else 'count'};", 4)
        self.say("(void)time;", 4)
        for state, following in zip(kernel.buffers["state"], kernel.buffers["next"], strict=True):
            kind, a, b = TYPES[state.dtype], layout.memory(state), layout.memory(following)
            if state in touched:
                self.say(f"{kind} *restrict {layout.names[state]} = count % 2 ? {b} : {a};", 4)
            if following in touched:
                self.say(f"{kind} *restrict {layout.names[following]} = count % 2 ? {a} : {b};", 4)
        for place in ("read", "row", "fixed", "write"):
            for buffer in kernel.buffers[place]:
                if buffer in touched:
                    self._point(buffer, layout.slots[place, buffer.slot])
        early = {buffer for block in layout.ahead for buffer in written(block)}
        for buffer in kernel.buffers["scratch"]:
            if buffer in touched and buffer not in layout.carried:
                offset = f" + step * rows * {layout.stride(buffer)}" if buffer in early else ""
                kind = TYPES[buffer.dtype]
                self.say(f"{kind} *restrict {layout.names[buffer]} = {layout.memory(buffer)}{offset};", 4)
        for block in blocks:
            self.block(block)

    def _point(self, buffer: Buffer, slot: int) -> None:
        """Where the caller's memory of a value begins at this step, for this block of rows."""
        kind = TYPES[buffer.dtype]
        constant = "" if buffer.place == "write" else "const "
        offset = {
            "read": f" + (time * batch + at) * {buffer.count}",
            "write": f" + (time * batch + at) * {buffer.count}",
            "row": f" + at * {buffer.count}",
        }.get(buffer.place, "")
        name = self.layout.names[buffer]
        self.say(f"{constant}{kind} *restrict {name} = ({constant}{kind} *)given[{slot}]{offset};", 4)

    def _product_ahead(self, block: Product) -> None:
        """A product for the rows of several steps; what comes from a sequence is put together first."""
        left, layout = block.left, self.layout
        out = layout.memory(block.out)
        if left.place == "scratch":
            self.product(block, layout.memory(left), out, "span * rows", 3)
            return
        size, stride = left.count, layout.padded(left.count)
        time = "(steps - 1 - begin - step)" if self.kernel.reverse else "(begin + step)"
        offset = "at" if left.place == "row" else f"({time} * batch + at)"
        source = f"(const {layout.real} *)given[{layout.slots[left.place, left.slot]}] + {offset} * {size}"
        self.say("for (long step = 0; step < span; step++) {", 3)
        self.say(f"const {layout.real} *taken = {source};", 4)
        gathered = f"gathered + (step * rows + row) * {stride}"
        self.say("for (long row = from; row < to; row++)", 4)
        self.say(f"memcpy({gathered}, taken + row * {size}, {size} * sizeof(REAL));", 5)
        self.say("}", 3)
        self.product(block, "gathered", out, "span * rows", 3, stride)


def _spelt(name: str) -> str:
    return name.replace("*/", "* /")
