"""From the description of a kernel to C: readable, with the user's names, the same text for the same kernel.

Each thread takes its rows through the whole sequence. Sizes of features are constants; length, batch and rows are not.
"""

from __future__ import annotations

from importlib import resources

import torch

from leporello.engine.cpu.spelling import GATHERED, OF_INTEGERS, POWERS, SPELLING, TYPES, ends, number
from leporello.engine.kernel.description import (
    Apply,
    Block,
    Buffer,
    Constant,
    Expression,
    Fetch,
    Kernel,
    Load,
    Place,
    Pointwise,
    Product,
    Reduction,
    dtype_of_expression,
)
from leporello.engine.kernel.reads import ahead, touches, written
from leporello.errors import EngineRefusal

PLACES = ("state", "read", "row", "fixed", "next", "write")  # the order of the pointers
MATRIX_WORDS = 5  # of a matrix, behind them
TOGETHER = 24  # rows that one thread takes through a step together, at most
TOGETHER_IF_LARGE = 64  # where matrices do not stay in the cache: each is read once a step for all of them
LARGE = 1 << 18  # numbers of all matrices


def source_of(kernel: Kernel, wide_bytes: int) -> str:
    """The whole text of a kernel."""
    return _Writer(kernel, wide_bytes).text()


def part(name: str) -> str:
    """One of the texts that lie beside this file."""
    return resources.files("leporello.engine.cpu").joinpath(name).read_text(encoding="utf-8")


def runtime_text(wide_bytes: int) -> str:
    """What all kernels share: products of both types of numbers, and the threads."""
    lines = []
    for real, integer, letter, size in (("float", "int", "f", 4), ("double", "long long", "d", 8)):
        lines += [f"#define REAL {real}", f"#define WIDE {wide_bytes // size}", f"#define NAME(name) name##_{letter}"]
        lines.append(f"#define INTEGER {integer}")
        lines += [f"#define ROWS {tile_rows(wide_bytes)}", part("products.c")]
        lines += [f"#undef {name}" for name in ("REAL", "INTEGER", "WIDE", "NAME", "ROWS")]
    return "\n".join([part("team.c"), "#include <string.h>", *lines, part("threads.c")])


def together(kernel: Kernel) -> int:
    """Rows that are taken through a step together, at most."""
    numbers = sum(matrix.heads * matrix.inner * matrix.outer for matrix in kernel.matrices)
    return TOGETHER_IF_LARGE if numbers >= LARGE else TOGETHER


def tile_rows(wide_bytes: int) -> int:
    """Rows of a tile: as many as two vectors each leave room for in the registers."""
    return 12 if wide_bytes == 64 else 6


class _Writer:
    """Lines while they are written."""

    def __init__(self, kernel: Kernel, wide_bytes: int) -> None:
        self.kernel = kernel
        self.real = TYPES[kernel.dtype]
        self.wide = wide_bytes // kernel.dtype.itemsize
        self.lines: list[str] = []
        self.names: dict[Buffer, str] = {}
        self._name_all()
        self.ahead = ahead(kernel)
        self.together = together(kernel)

    def _name_all(self) -> None:
        taken: set[str] = set()
        for own in self.kernel.buffers.values():
            for buffer in own:
                ending = {"next": "_next", "write": "_out", "state": "_state"}.get(buffer.place, "")
                wish = (
                    "v_"
                    + "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in buffer.name)
                    + ending
                )
                name, count = wish, 1
                while name in taken:
                    name, count = f"{wish}_{count}", count + 1
                taken.add(name)
                self.names[buffer] = name

    def stride(self, buffer: Buffer) -> int:
        """Elements from row to row: whole panels behind the last value, where the step's own memory is meant."""
        if buffer.place not in ("scratch", "state", "next"):
            return buffer.count
        panel = 2 * self.wide
        return -(-buffer.count // panel) * panel + panel

    def text(self) -> str:
        kernel = self.kernel
        self.say(f"/* {kernel.name}: one inside, {'backwards' if kernel.reverse else 'forwards'} in time.")
        for place in ("state", "read", "row", "fixed", "write"):
            for buffer in kernel.buffers[place]:
                kind = str(buffer.dtype).removeprefix("torch.")
                self.say(f"   {place:<6} {_spelt(buffer.name)} {list(buffer.sizes)} {kind}")
        self.say("*/")
        self.say(f"#define REAL {self.real}")
        self.say(f"#define TOGETHER {self.together}")
        self.lines.append(part("functions.c"))
        self.say(f"const long scratch_bytes = {sum(map(self._bytes, self._own())) + self._gathered() + 64};")
        self.say("")
        self._runner()
        return "\n".join(self.lines) + "\n"

    def say(self, line: str, depth: int = 0) -> None:
        self.lines.append("    " * depth + line)

    def _own(self) -> list[Buffer]:
        """The step's own memory."""
        buffers = self.kernel.buffers
        return [*buffers["state"], *buffers["next"], *buffers["scratch"]]

    def _bytes(self, buffer: Buffer) -> int:
        return -(-self.together * self.stride(buffer) * buffer.dtype.itemsize // 64) * 64

    def _runner(self) -> None:
        kernel = self.kernel
        self.say("/* of the rows from first to behind last one's share, and of the columns of their products */")
        self.say("void run(void **given, long first, long last, long steps, long batch, char *scratch, long share,")
        self.say("         long shares) {")
        self.say("scratch = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);", 1)
        slots = self._slots()
        if kernel.matrices:
            self.say(f"const products product = (products)given[{slots['products', 0]}];", 1)
        for buffer in self._own():
            self.say(f"{TYPES[buffer.dtype]} *{self._memory(buffer)} = (void *)scratch;", 1)
            self.say(f"scratch += {self._bytes(buffer)};", 1)
        if self._gathered():
            self.say(f"{self.real} *gathered = (void *)scratch;", 1)
        self.say("long blocks = (last - first + TOGETHER - 1) / TOGETHER, done = first;", 1)
        self.say("for (long block = 0; block < blocks; block++) {", 1)
        self.say("const long at = done, rows = (last - done + blocks - block - 1) / (blocks - block);", 2)
        self.say("done += rows;", 2)
        self.say("const long from = rows * share / shares, to = rows * (share + 1) / shares;", 2)
        for buffer in kernel.buffers["state"]:
            begin = f"((const {TYPES[buffer.dtype]} *)given[{slots['state', buffer.slot]}])"
            self._copy(buffer, begin, self._memory(buffer), into=True)
        self._all_steps()
        for buffer, following in zip(kernel.buffers["state"], kernel.buffers["next"], strict=True):
            last = f"(steps % 2 ? {self._memory(following)} : {self._memory(buffer)})"
            self._copy(buffer, f"(({TYPES[buffer.dtype]} *)given[{slots['next', buffer.slot]}])", last, into=False)
        self.say("}", 1)
        self.say("}")

    def _gathered(self) -> int:
        """Bytes for the rows of several steps that products ahead multiply."""
        lefts = [block.left for block in self.ahead if isinstance(block, Product) and block.left.place != "scratch"]
        panel, size = 2 * self.wide, self.kernel.dtype.itemsize
        return max((self.together * (-(-left.count // panel) * panel + panel) * size for left in lefts), default=0)

    def _memory(self, buffer: Buffer) -> str:
        return f"{self.names[buffer]}_memory"

    def _all_steps(self) -> None:
        """The steps of a block of rows; what waits for no state runs for several of them together, if rows are few."""
        most = "TOGETHER / rows" if self.ahead else "1"
        self.say(f"const long most = {most};", 2)
        self.say("for (long begin = 0; begin < steps; begin += most) {", 2)
        self.say("const long span = steps - begin < most ? steps - begin : most;", 3)
        for block in self.ahead:
            if isinstance(block, Product):
                self._product_ahead(block)
                continue
            self.say("for (long step = 0; step < span; step++) {", 3)
            self._step(block)
            self.say("}", 3)
        self.say("for (long step = 0; step < span; step++) {", 3)
        self._step(*[block for block in self.kernel.blocks if block not in self.ahead])
        self.say("}", 3)
        self.say("}", 2)

    def _step(self, *blocks: Block) -> None:
        """Blocks of one step, with the places of what they read and write."""
        kernel, slots = self.kernel, self._slots()
        touched = {buffer for block in blocks for buffer in touches(block)}
        self.say("const long count = begin + step;", 4)
        self.say(f"const long time = {'steps - 1 - count' if kernel.reverse else 'count'};", 4)
        self.say("(void)time;", 4)
        for state, following in zip(kernel.buffers["state"], kernel.buffers["next"], strict=True):
            kind, a, b = TYPES[state.dtype], self._memory(state), self._memory(following)
            if state in touched:
                self.say(f"{kind} *restrict {self.names[state]} = count % 2 ? {b} : {a};", 4)
            if following in touched:
                self.say(f"{kind} *restrict {self.names[following]} = count % 2 ? {a} : {b};", 4)
        for place in ("read", "row", "fixed", "write"):
            for buffer in kernel.buffers[place]:
                if buffer in touched:
                    self._point(buffer, slots[place, buffer.slot])
        early = {buffer for block in self.ahead for buffer in written(block)}
        for buffer in kernel.buffers["scratch"]:
            if buffer in touched:
                offset = f" + step * rows * {self.stride(buffer)}" if buffer in early else ""
                kind = TYPES[buffer.dtype]
                self.say(f"{kind} *restrict {self.names[buffer]} = {self._memory(buffer)}{offset};", 4)
        for block in blocks:
            self._block(block)

    def _product_ahead(self, block: Product) -> None:
        """A product for the rows of several steps; what comes from a sequence is put together first."""
        left = block.left
        if left.place == "scratch":
            self._product(block, self._memory(left), self._memory(block.out), "span * rows", 3)
            return
        size, panel = left.count, 2 * self.wide
        stride = -(-size // panel) * panel + panel
        time = "(steps - 1 - begin - step)" if self.kernel.reverse else "(begin + step)"
        offset = "at" if left.place == "row" else f"({time} * batch + at)"
        source = f"(const {self.real} *)given[{self._slots()[left.place, left.slot]}] + {offset} * {size}"
        self.say("for (long step = 0; step < span; step++) {", 3)
        self.say(f"const {self.real} *taken = {source};", 4)
        gathered = f"gathered + (step * rows + row) * {stride}"
        self.say("for (long row = from; row < to; row++)", 4)
        self.say(f"memcpy({gathered}, taken + row * {size}, {size} * sizeof(REAL));", 5)
        self.say("}", 3)
        self._product(block, "gathered", self._memory(block.out), "span * rows", 3, stride)

    def _slots(self) -> dict[tuple[str, int], int]:
        """Where in `given` the pointers stand; a matrix takes the words of `matrix` in products.c."""
        found, count = {}, 0
        for place in PLACES:
            for buffer in self.kernel.buffers[place]:
                found[place, buffer.slot] = count
                count += 1
        for index in range(len(self.kernel.matrices)):
            found["matrix", index] = count + index * MATRIX_WORDS
        found["products", 0] = count + len(self.kernel.matrices) * MATRIX_WORDS
        return found

    def _copy(self, buffer: Buffer, memory: str, own: str, *, into: bool) -> None:
        own = f"{own} + row * {self.stride(buffer)}"
        there = f"{memory} + (at + row) * {buffer.count}"
        size = buffer.count * buffer.dtype.itemsize
        if into:
            self.say("for (long row = from; row < to; row++) {", 2)
            self.say(f"if ({memory}) memcpy({own}, {there}, {size});", 3)
            self.say(f"else memset({own}, 0, {size});", 3)
            self.say("}", 2)
        else:
            self.say(f"for (long row = from; row < to; row++) memcpy({there}, {own}, {size});", 2)

    def _point(self, buffer: Buffer, slot: int) -> None:
        kind = TYPES[buffer.dtype]
        constant = "" if buffer.place == "write" else "const "
        offset = {
            "read": f" + (time * batch + at) * {buffer.count}",
            "write": f" + (time * batch + at) * {buffer.count}",
            "row": f" + at * {buffer.count}",
        }.get(buffer.place, "")
        self.say(f"{constant}{kind} *restrict {self.names[buffer]} = ({constant}{kind} *)given[{slot}]{offset};", 4)

    # ---- blocks

    def _block(self, block: Block) -> None:
        if isinstance(block, Product):
            self._product(block, self.names[block.left], self.names[block.out], "rows", 4)
        else:
            self.say("for (long row = from; row < to; row++) {", 4)
            if isinstance(block, Pointwise):
                self._pointwise(block)
            else:
                self._reduction(block)
            self.say("}", 4)

    def _product(self, block: Product, left: str, out: str, rows: str, depth: int, stride: int | None = None) -> None:
        slot = self._slots()["matrix", block.matrix]
        heads = "" if block.heads == 1 else f"for (long head = 0; head < {block.heads}; head++) "
        head = "0" if block.heads == 1 else "head"
        stride = self.stride(block.left) if stride is None else stride
        self.say(
            f"{heads}product(given + {slot}, {head}, {rows}, {block.inner}, {block.outer}, "
            f"{left} + {block.offset} + {head} * {block.inner}, {stride}, "
            f"{out} + {head} * {block.outer}, {self.stride(block.out)});",
            depth,
        )

    def _pointwise(self, block: Pointwise) -> None:
        body = _Body(self)
        for store in block.stores:
            value = body.value(store.value)
            kind = TYPES[store.buffer.dtype]
            name = body.kept(value, kind)
            body.lines.append(f"{self._place(store.buffer, str(store.index))} = {name};")
            body.known[store.buffer, store.index] = name
        for text in body.outside:
            self.say(text, 5)
        depth = self._loops(block.sizes, "i", 5)
        for text in body.lines:
            self.say(text, depth)
        self._close(depth, 5)

    def _reduction(self, block: Reduction) -> None:
        kind = TYPES[block.buffer.dtype]
        body = _Body(self)
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
        self.say(f"{self._place(block.buffer, str(block.index))} = sum;", depth)
        self._close(depth, 5)

    def _loops(self, sizes: tuple[int, ...], letter: str, depth: int, simd: str = "") -> int:
        real = [(number_, size) for number_, size in enumerate(sizes) if size != 1]
        for place, (number_, size) in enumerate(real):
            if place == len(real) - 1:
                pragma = f"#pragma omp simd reduction(+:{simd})" if simd else "#pragma GCC ivdep"
                if simd or letter == "i":
                    self.say(pragma, depth)
            self.say(f"for (long {letter}{number_} = 0; {letter}{number_} < {size}; {letter}{number_}++) {{", depth)
            depth += 1
        return depth

    def _close(self, depth: int, to: int) -> None:
        while depth > to:
            depth -= 1
            self.say("}", depth)

    def _place(self, buffer: Buffer, index: str) -> str:
        row = "" if buffer.place == "fixed" else f"row * {self.stride(buffer)} + "
        return f"{self.names[buffer]}[{row}{index}]"


class _Body:
    """The statements inside loops: each value once, by name.

    outside   those that no loop changes: compilers find vectors more readily where they stand in front
    """

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer
        self.lines: list[str] = []
        self.outside: list[str] = []
        self.staying: set[int] = set()
        self.count = 0
        self.named: dict[int, str] = {}
        self.known: dict[tuple[Buffer, object], str] = {}
        self.alive: list[Expression] = []

    def kept(self, value: str, kind: str, outside: bool = False) -> str:
        """A value under a name of its own."""
        if value.isidentifier():
            return value
        name, self.count = f"t{self.count}", self.count + 1
        (self.outside if outside else self.lines).append(f"const {kind} {name} = {value};")
        return name

    def _stays(self, expression: Expression) -> bool:
        """Whether no loop changes a value; those it is made of have been asked before."""
        if isinstance(expression, Constant):
            return True
        if isinstance(expression, Apply):
            return all(isinstance(part, Constant) or id(part) in self.staying for part in expression.arguments)
        if expression.index.terms or isinstance(expression, Place):
            return False
        if isinstance(expression, Fetch):
            return all(id(along.number) in self.staying for along in expression.by)
        return (expression.buffer, expression.index) not in self.known

    def value(self, expression: Expression) -> str:
        if id(expression) in self.named:
            return self.named[id(expression)]
        found = self._spelt(expression)
        if isinstance(expression, (Apply, Load, Fetch)):
            stays = self._stays(expression)
            if stays:
                self.staying.add(id(expression))
            found = self.kept(found, TYPES[dtype_of_expression(expression)], stays)
        self.named[id(expression)] = found
        self.alive.append(expression)  # its id stays its own
        return found

    def _spelt(self, expression: Expression) -> str:
        if isinstance(expression, Load):
            key = (expression.buffer, expression.index)
            return self.known.get(key) or self.writer._place(expression.buffer, str(expression.index))
        if isinstance(expression, Constant):
            return number(expression.value, expression.dtype)
        if isinstance(expression, Place):
            return f"(({TYPES[expression.dtype]})({expression.index}))"
        if isinstance(expression, Fetch):
            places = [str(expression.index)]
            for along in expression.by:
                by, last = self.value(along.number), along.size - 1
                places.append(f"({by} < 0 ? 0 : {by} > {last} ? {last} : {by}) * {along.stride}")
            return self.writer._place(expression.buffer, " + ".join(places))
        return self._applied(expression)

    def _applied(self, expression: Apply) -> str:
        arguments = [self.value(argument) for argument in expression.arguments]
        if expression.operator == "pow" and isinstance(expression.arguments[1], Constant):
            exponent = expression.arguments[1].value
            if exponent in POWERS:
                return POWERS[exponent].format(arguments[0])
        real = _working(expression)
        if expression.operator == "cast" and expression.dtype == torch.bool:
            return f"{arguments[0]} != 0"
        pattern = (SPELLING if real.is_floating_point else {**SPELLING, **OF_INTEGERS}).get(expression.operator)
        if pattern is None:
            raise EngineRefusal(f"the operator {expression.operator} is not covered by kernels.")
        if expression.operator == "bitwise_not" and expression.dtype == torch.bool:
            pattern = "!{0}"
        double = real == torch.float64
        return pattern.format(*arguments, s="d" if double else "f", m="" if double else "f", t=TYPES[expression.dtype])


def _working(expression: Apply) -> torch.dtype:
    """In which type an operator computes: the widest of its arguments'; its value's where they are integers."""
    types = [dtype_of_expression(argument) for argument in expression.arguments]
    if torch.float64 in types or torch.float32 in types:
        return torch.float64 if torch.float64 in types else torch.float32
    return expression.dtype if expression.operator == "cast" else types[0]


def _spelt(name: str) -> str:
    return name.replace("*/", "* /")
