"""From the description of a kernel to C: readable, with the user's names, the same text for the same kernel.

Each thread takes its rows through the whole sequence. Sizes of features are constants; length, batch and rows are not.
Knows rows, steps, and which blocks run ahead of them; knows nothing of what a block computes.
"""

from __future__ import annotations

from leporello.engine.cpu.blocks import BlockLines
from leporello.engine.cpu.layout import Layout
from leporello.engine.cpu.spelling import TYPES
from leporello.engine.cpu.texts import part
from leporello.engine.kernel.description import Block, Buffer, Kernel, Product
from leporello.engine.kernel.reads import touches, written


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
