"""From a schedule and a geometry to the text of a kernel, for device.cuh or, without a GPU, for host.h.

The text is a function `sweep` of all steps. Its phases are calls of the library (products, exchanges, reductions) and
`m.each(...)`: what each thread computes for its units.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

import torch

from leporello.engine.gpu.cuda_expressions import (
    FROM_STORAGE,
    STORAGE,
    TO_STORAGE,
    Body,
    computed_type,
    index_text,
)
from leporello.engine.gpu.geometry import (
    CHUNK_BYTES,
    EXCHANGES,
    ROWS,
    SHARED_BYTES,
    Geometry,
    Tiling,
    chunks_of,
    padded_own,
    tilings,
)
from leporello.engine.gpu.schedule import (
    Part,
    Places,
    Register,
    Schedule,
    Statement,
    Total,
    Vector,
    scalar_part,
    uses,
)
from leporello.errors import EngineRefusal
from leporello.kernel.description import Buffer, Expression, Fetch, Load, Product, operands

FIRST_WORDS = 4  # steps, batch, the first group of this launch, groups of all launches
RING_BYTES = 48 * 1024  # of inputs of four steps; where that does not suffice, of two
MOST_HELD = 16  # numbers of invariants that a thread keeps in registers
OPERATIONS = {"sum": "SUM", "amax": "AMAX", "amin": "AMIN", "prod": "PROD", "any": "ANY", "all": "ALL"}
Input = tuple[Buffer, int, Places]  # a buffer, the space of the units that read it, and where each reads
VECTOR_TYPES = {torch.float16: "F16", torch.bfloat16: "BF16"}


def library_text(name: str) -> str:
    """The text of one of the files beside this one."""
    return resources.files("leporello.engine.gpu").joinpath(name).read_text(encoding="utf-8")


class KernelText:
    """The text of a kernel, and what a runner must know to pass its arguments.

    words          index of each argument in `Given`: ("state", slot), ("matrix", index), ("vector", index), ...
    shared_bytes   of shared memory that a block needs
    slice_bytes    of each vector, for one tile of all blocks of a group
    """

    def __init__(self, schedule: Schedule, geometry: Geometry) -> None:
        self.schedule, self.geometry, self.kernel = schedule, geometry, schedule.kernel
        self.words: dict[tuple[str, int], int] = {}
        self.lines: list[str] = []
        self.members: list[str] = []
        self.tilings: list[Tiling] = tilings(schedule, geometry)
        self.totals_at = self._totals_by_level()
        self._number_words()
        self._find_inputs()
        self._lay_out_memory()
        self._choose_registers()
        self._sweep()

    # ---- arguments

    def _number_words(self) -> None:
        def add(key: tuple[str, int], count: int = 1) -> None:
            self.words[key] = self.word_count
            self.word_count += count

        self.word_count = FIRST_WORDS
        for place in ("state", "read", "row", "fixed", "next", "write"):
            for buffer in self.kernel.buffers[place]:
                add((place, buffer.slot))
        for index in range(len(self.kernel.matrices)):
            add(("matrix", index), 4)
        for index in range(len(self.schedule.vectors) + len(self.totals_at)):
            add(("vector", index))

    def _pointer(self, buffer: Buffer, place: str | None = None) -> str:
        constant = "" if buffer.place in ("next", "write") and place is None else "const "
        return f"(({constant}{STORAGE[buffer.dtype]} *)given.word[{self.words[place or buffer.place, buffer.slot]}])"

    # ---- memory

    def _totals_by_level(self) -> dict[int, list[Total]]:
        levels: dict[int, list[Total]] = {}
        for total in self.schedule.totals:
            levels.setdefault(total.level, []).append(total)
        return levels

    def _lay_out_memory(self) -> None:
        """Offsets in shared memory: barriers, vectors, staged slices, matrices, partial sums, reductions, totals."""
        geometry, tiles, schedule = self.geometry, self.geometry.tiles, self.schedule
        slots = 1 if geometry.exchange == "grid" else 2
        vectors = self.schedule.vectors
        count = len(vectors) + len(self.totals_at)
        at = -(-count * tiles * 16 // 128) * 128
        self.vector_types: list[str] = []
        self.slice_bytes: list[int] = []
        self.scatters: dict[int, int] = {}  # by vector: the multiplication that scatters it
        forms = [(chunks_of(v, geometry), VECTOR_TYPES.get(v.of.dtype, "F32")) for v in vectors]
        forms += [(-(-len(totals) // 4), "F32") for totals in self.totals_at.values()]
        pairs = list(zip(schedule.multiplications, self.tilings, strict=True))
        for index, (chunks, kind) in enumerate(forms):
            readers = [
                (number, tiling)
                for number, (one, tiling) in enumerate(pairs)
                if index < len(vectors) and one.vector is vectors[index]
            ]
            barrier, word = index * tiles * 16, self.words["vector", index]
            if readers and readers[0][1].scattered:
                self.scatters[index] = readers[0][0]
                self.vector_types.append(f"Vector<{kind}, {chunks}, 0, 0, 0, 0, 0>")
                tile_bytes = 512 if kind == "F32" else 256
                self.slice_bytes.append(readers[0][1].tiles16 * tile_bytes * geometry.blocks**2)
                continue
            whole = chunks * geometry.blocks * CHUNK_BYTES
            room = max([whole, *(t.over_inner * t.pieces * 4 * CHUNK_BYTES for _, t in readers)])
            staged = at + tiles * slots * room
            self.vector_types.append(f"Vector<{kind}, {chunks}, {at}, {room}, {staged}, {barrier}, {word}>")
            self.slice_bytes.append(whole)
            at = staged + (0 if geometry.exchange == "block" else tiles * chunks * CHUNK_BYTES)
        self.multiply_types: list[str] = []
        for index, (multiplication, tiling) in enumerate(pairs):
            vector = vectors.index(multiplication.vector)
            rest, at = at, at + tiling.rest_bytes(geometry)
            if tiling.scattered:
                staged, received = at, at + tiles * tiling.pieces * 4 * CHUNK_BYTES
                sums = received + tiles * slots * self.slice_bytes[vector] // geometry.blocks
                form = f"{tiling.tiles16}, {tiling.pieces}, {tiling.kept}, {rest}, {staged}, {received}"
                form += f", {vector * tiles * 16}, {self.words['vector', vector]}, {sums}, {tiling.pitch}, {tiling.over_inner}"
                self.multiply_types.append(f"Scatter<W{index}, V{vector}, {form}>")
                at = sums + tiling.sum_bytes
                continue
            self.multiply_types.append(
                f"Multiply<W{index}, V{vector}, {tiling.tiles16}, {tiling.over_rows}, {tiling.over_inner}, "
                f"{tiling.pieces}, {tiling.kept}, {rest}, {at}, {tiling.pitch}>"
            )
            at += tiling.sum_bytes
        self.reduced: dict[int, int] = {}  # where each total's parts are
        for total in self.schedule.totals:
            self.reduced[total.number] = at
            at += ROWS * geometry.own(total.parts[0].space) * 4
        at = -(-at // 16) * 16
        self.ring_begin = at
        at += self.ring_steps * tiles * self.stage_bytes
        self.totals_begin = at
        at += tiles * len(self.schedule.totals) * ROWS * 4
        self.shared_bytes = -(-max(at, 128) // 128) * 128
        if self.shared_bytes > SHARED_BYTES:
            raise EngineRefusal(f"the matrices do not fit on the chip: {self.shared_bytes} bytes a block.")

    # ---- registers

    def _choose_registers(self) -> None:
        """Which values a thread keeps from one phase to the next: those that are read at a later level, and states."""
        self.last_read: dict[Register, int] = {}
        self.state_reads: dict[Register, Register] = {}  # of the state -> of its next value
        following = dict(zip(self.kernel.buffers["state"], self.kernel.buffers["next"], strict=True))
        for value, part, level, inner in self._values():
            for load, inside in self._loads(value, part):
                register = self._register(load, inside, inner)
                if register is None:
                    continue
                self.last_read[register] = max(level, self.last_read.get(register, 0))
                if register[0] in following:
                    self.state_reads[register] = (following[register[0]], *register[1:])
        self.member_names: dict[Register, str] = {}
        for register, level in self.last_read.items():
            stored = self.schedule.registers.get(register)
            if register in self.state_reads or (stored is not None and stored < level):
                self._add_member(register, f"r_{len(self.member_names)}")
        for state, register in self.state_reads.items():  # the old value is read after the new one is stored
            if self.schedule.registers.get(register, 0) < self.last_read[state]:
                self.member_names.setdefault(register, "")
                if not self.member_names[register]:
                    self._add_member(register, f"r_{len(self.member_names)}")

    def _add_member(self, register: Register, name: str) -> None:
        self.member_names[register] = name
        kind = computed_type(register[0].dtype)
        self.members.append(f"{kind} {name}[{self.geometry.tiles}][{self._elements(register[1])}];")

    def _values(self) -> Iterator[tuple[Expression, Part, int, bool]]:
        for statement in self.schedule.statements:
            yield statement.value, statement.part, statement.level, bool(statement.operator)
        for total in self.schedule.totals:
            for part in total.parts:
                yield total.value, part, total.level, False

    def _loads(self, value: Expression, part: Part) -> Iterator[tuple[Load | Fetch, Part]]:
        pending, seen = [value], set[int]()
        while pending:
            one = pending.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            pending += operands(one)
            if isinstance(one, (Load, Fetch)):
                if one.buffer in self.schedule.scalars:
                    yield from self._loads(self.schedule.scalars[one.buffer].value, scalar_part(part))
                else:
                    yield one, part

    def _register(self, load: Load | Fetch, part: Part, inner: bool) -> Register | None:
        """The register that a load reads; None if it reads something else."""
        buffer = load.buffer
        if isinstance(load, Fetch) or buffer.place in ("read", "row", "fixed") or (inner and uses(load.index, "k")):
            return None
        if any(total.buffer is buffer for total in self.schedule.totals):
            return None
        places = self.schedule.places(load.index, part)
        return (buffer, part.space, places) if (part.space, places) in self.schedule.homes_of(buffer) else None

    def _elements(self, space: int) -> int:
        """Elements (row, unit) of a space that a thread has."""
        return -(-ROWS * self.geometry.own(space) // self.geometry.threads)

    # ---- text

    def text(self, library: str, defined: dict[str, int]) -> str:
        """The whole text for one of the libraries, device.cuh or host.h, with further macros."""
        geometry = self.geometry
        macros = {
            "BLOCKS": geometry.blocks,
            "TILES": geometry.tiles,
            "THREADS": geometry.threads,
            "WORDS": self.word_count,
            "EXCHANGE": EXCHANGES.index(geometry.exchange),
            "SHARED": self.shared_bytes,
            **defined,
        }
        lines = [f"/* {self.kernel.name}, {'backwards' if self.kernel.reverse else 'forwards'} in time */"]
        lines += [f"#define {name} {value}" for name, value in macros.items()]
        return "\n".join([*lines, library_text(library), library_text("functions.cuh"), *self.lines]) + "\n"

    def emit(self, line: str, depth: int = 0) -> None:
        self.lines.append("    " * depth + line)

    def _sweep(self) -> None:
        schedule = self.schedule
        body = KernelText._Collected(self)
        for index, kind in enumerate(self.vector_types):
            self.emit(f"typedef {kind} V{index};")
        for index, vector in enumerate(schedule.vectors):
            self._vector_reader(index, vector)
        for index in range(len(schedule.multiplications)):
            self._weights(index)
        steps = body.collect(self._steps)
        begin = body.collect(self._begin)
        self.emit("struct Thread {")
        for member in self.members:
            self.emit(member, 1)
        self.emit("};")
        self.emit("template <class M>")
        self.emit("INLINE void sweep(M &m, const Given &given) {")
        self.emit("const long steps = (long)given.word[0], batch = (long)given.word[1];", 1)
        self.lines += begin
        self.emit("ONCE", 1)
        self.emit("for (long step = 0; step < steps; step++) {", 1)
        self.emit(f"const long time = {'steps - 1 - step' if self.kernel.reverse else 'step'};", 2)
        self.emit("(void)time;", 2)
        self.lines += steps
        self.emit("}", 1)
        self.emit("m.finish();", 1)
        self.emit("}")
        self.emit("KERNEL(sweep)")

    class _Collected:
        """Lines that are written aside."""

        def __init__(self, text: KernelText) -> None:
            self.text = text

        def collect(self, write: object) -> list[str]:
            before, self.text.lines = self.text.lines, []
            write()  # type: ignore[operator]
            found, self.text.lines = self.text.lines, before
            return found

    def _vector_reader(self, index: int, vector: Vector) -> None:
        """A function that reads an element of a vector by its position in the buffer."""
        own, padded = self.geometry.own(vector.space), padded_own(vector, self.geometry)
        self.emit(f"INLINE float get_{index}(const Block &b, int tile, long slot, int row, int at) {{")
        if vector.regular:
            self.emit(f"const int part = at / {vector.space}, unit = at % {vector.space};", 1)
        else:
            inverse = [0] * int(vector.of.count)
            for number, places in enumerate(vector.places):
                for unit, place in enumerate(places):
                    inverse[place] = number * vector.space + unit
            self.emit(f"static const unsigned short table[] = {{{', '.join(map(str, inverse))}}};", 1)
            self.emit(f"const int part = table[at] / {vector.space}, unit = table[at] % {vector.space};", 1)
        self.emit(f"return V{index}::at(b, tile, slot, row, unit / {own}, part * {padded} + unit % {own});", 1)
        self.emit("}")

    def _weights(self, index: int) -> None:
        """The elements of the matrices of a multiplication: for each row of its result and element of its vector."""
        multiplication, tiling = self.schedule.multiplications[index], self.tilings[index]
        vector = multiplication.vector
        own, padded = self.geometry.own(vector.space), padded_own(vector, self.geometry)
        self.emit(f"struct W{index} {{")
        self.emit(f"static const int ROWS = {tiling.rows};", 1)
        self.emit("METHOD static float element(const Given &given, int rank, int row, int from, int index) {", 1)
        self.emit(f"const int part = index / {padded}, mine = index % {padded}, unit = from * {own} + mine;", 2)
        self.emit(f"if (mine >= {own} || unit >= {vector.space} || part >= {len(vector.places)}) return 0.0f;", 2)
        if vector.regular:
            self.emit(f"const int at = part * {vector.space} + unit;", 2)
        else:
            table = ", ".join(str(place) for places in vector.places for place in places)
            self.emit(f"static const unsigned short table[] = {{{table}}};", 2)
            self.emit(f"const int at = table[part * {vector.space} + unit];", 2)
        for block, space, parts in multiplication.products:
            self._weights_of(block, space, parts)
        self.emit("return 0.0f;", 2)
        self.emit("}", 1)
        self.emit("};")

    def _weights_of(self, block: Product, space: int, parts: int) -> None:
        own, heads = self.geometry.own(space), int(block.heads)
        matrix = self.kernel.matrices[block.matrix]
        buffer, word = self.kernel.buffers["fixed"][matrix.fixed], self.words["matrix", block.matrix]
        self.emit(f"if (row < {own * parts}) {{", 2)
        self.emit(
            f"const int u = rank * {own} + row % {own}, n = row / {own} * {space} + u, k = at - {block.offset};", 3
        )
        self.emit(f"if (u >= {space} || k < 0 || k >= {heads * block.inner}) return 0.0f;", 3)
        head = "0"
        if heads > 1:
            self.emit(f"if (n / {block.outer} != k / {block.inner}) return 0.0f;", 3)
            head = f"{'n / ' + str(block.outer) if matrix.heads > 1 else '0'}"
        place = f"{head} * (long)given.word[{word + 1}] + k % {block.inner} * (long)given.word[{word + 2}]"
        place += f" + n % {block.outer} * (long)given.word[{word + 3}]"
        loaded = f"((const {STORAGE[buffer.dtype]} *)given.word[{word}])[{place}]"
        self.emit(f"return {FROM_STORAGE.get(buffer.dtype, '{0}').format(loaded)};", 3)
        self.emit("}", 2)
        self.emit(f"row -= {own * parts};", 2)

    def products_at(self, level: int, space: int) -> list[Register]:
        """The results of the products of a level, in the units of a space."""
        return [
            (block.out, space, tuple(range(part * space, (part + 1) * space)))
            for multiplication in self.schedule.multiplications
            for block, own_space, parts in multiplication.products
            for part in range(parts)
            if multiplication.level == level and own_space == space
        ]

    def product_sum(self, register: Register) -> str:
        """The text of a product's result for a unit: the sum over the warps that share it."""
        buffer, space, places = register
        own = self.geometry.own(space)
        for index, multiplication in enumerate(self.schedule.multiplications):
            begin = 0
            for block, block_space, parts in multiplication.products:
                if block.out is buffer:
                    row = begin + places[0] // space * own
                    return f"w{index}.sum(b, (int)((step * TILES + tile) & 1), row, {row} + own)"
                begin += self.geometry.own(block_space) * parts
        raise AssertionError(f"no product gives {buffer.name}")

    # ---- inputs that are read one step ahead, and invariants that stay in registers

    def _find_inputs(self) -> None:
        """Which inputs are copied into a ring in shared memory, which are loaded one step ahead, and which are held.

        ringed    sequences of which a block reads whole pieces of 16 bytes, with where they are in a stage of the ring
        fetched   other sequences, with the names of registers
        held      invariants, with the names of registers
        """
        self.held: dict[Input, str] = {}
        self.fetched: dict[Input, str] = {}
        self.ringed: dict[Input, int] = {}
        self.stage_bytes = 0
        self.cursor_members: list[tuple[str, int]] = []
        self.ahead = "0"  # the step that `_fetch` loads
        self.cursors: dict[tuple[Buffer, int, int], str] = {}
        for statement in self.schedule.statements:
            if statement.buffer.place == "write":
                places = self.schedule.places(statement.index, statement.part)
                self._add_cursor(statement.buffer, statement.part.space, places)
        tiles, held = self.geometry.tiles, 0
        loads: dict[Input, None] = {}
        for value, part, _, inner in self._values():
            for load, inside in self._loads(value, part):
                if isinstance(load, Fetch) or load.buffer.place not in ("read", "row", "fixed"):
                    continue
                if not (inner and uses(load.index, "k")):
                    loads.setdefault((load.buffer, part.space, self.schedule.places(load.index, inside)))
        for buffer, space, places in loads:
            name, elements = f"in_{len(self.fetched) + len(self.held)}", self._elements(space)
            if buffer.place == "read" and self._in_pieces(buffer, space, places):
                self.ringed[buffer, space, places] = self.stage_bytes
                self.stage_bytes += ROWS * self.geometry.own(space) * buffer.dtype.itemsize
            elif buffer.place == "read":
                self.fetched[buffer, space, places] = name
                self._add_cursor(buffer, space, places)
                self.members.append(f"{STORAGE[buffer.dtype]} {name}[{tiles}][{elements}];")
            elif held + elements * (tiles if buffer.place == "row" else 1) <= MOST_HELD:
                rows = tiles if buffer.place == "row" else 1
                held += elements * rows
                self.held[buffer, space, places] = name
                self.members.append(f"{computed_type(buffer.dtype)} {name}[{rows}][{elements}];")
        for text, space in self.cursor_members:
            self.members.append(f"{text};" if self._one_cursor(space) else f"{text}[{self._elements(space)}];")
        self.ring_steps = 4 if 4 * tiles * self.stage_bytes <= RING_BYTES else 2

    def _add_cursor(self, buffer: Buffer, space: int, places: Places) -> None:
        """Let threads keep the address of a sequence, where neighbouring units have neighbouring elements or one."""
        stride = _stride(places)
        if stride is None or (buffer, space, stride) in self.cursors:
            return
        name = self.cursors[buffer, space, stride] = f"at_{len(self.cursors)}"
        constant = "const " if buffer.place == "read" else ""
        self.cursor_members.append((f"{constant}{STORAGE[buffer.dtype]} *{name}", space))

    def _in_pieces(self, buffer: Buffer, space: int, places: Places) -> bool:
        """Whether a block reads neighbouring elements of a sequence, in whole pieces of 16 bytes."""
        per = 16 // buffer.dtype.itemsize
        sizes = (self.geometry.own(space), int(buffer.count), places[0], space)
        return _stride(places) == 1 and all(size % per == 0 for size in sizes)

    # ---- the phases

    def _space_loop(
        self,
        space: int,
        lines: list[str],
        depth: int,
        *,
        every_unit: list[str] | None = None,
        after: list[str] | None = None,
        every: bool = False,
    ) -> None:
        """A loop over the elements (row, unit) of a thread; `lines` run for units that exist.

        every_unit, after   run for all elements, before and behind them
        every               no condition at all: also for elements and units that do not exist
        """
        own, elements = self.geometry.own(space), self._elements(space)
        count = ROWS * own
        self.emit("UNROLL", depth)
        self.emit(f"for (int j = 0; j < {elements}; j++) {{", depth)
        self.emit(
            f"const int e = thread + j * THREADS, row = e / {own}, own = e % {own}, unit = b.rank * {own} + own;",
            depth + 1,
        )
        exact = every or count % self.geometry.threads == 0
        if not exact:
            self.emit(f"if (e < {count}) {{", depth + 1)
        self.emit("const long n = b.first + tile * 8 + row;", depth + 1)
        self.emit("const bool live = n < batch;", depth + 1)
        self.emit("(void)live, (void)own;", depth + 1)
        for line in every_unit or ():
            self.emit(line, depth + 1)
        whole = every or own * self.geometry.blocks == space
        if not whole:
            self.emit(f"if (unit < {space}) {{", depth + 1)
        for line in lines:
            self.emit(line, depth + (1 if whole else 2))
        if not whole:
            self.emit("}", depth + 1)
        for line in after or ():
            self.emit(line, depth + 1)
        if not exact:
            self.emit("}", depth + 1)
        self.emit("}", depth)

    def _variables(self, part: Part) -> dict[str, str]:
        """The texts of the loop variables of a part, from the unit."""
        iteration = f"(unit + {part.number * part.space})" if part.number else "unit"
        axes = [axis for axis, size in enumerate(part.sizes) if size != 1]
        texts = {f"{part.letter}{axis}": "0" for axis in range(len(part.sizes))}
        behind = 1
        for position, axis in enumerate(reversed(axes)):
            text = iteration if behind == 1 else f"({iteration} / {behind})"
            texts[f"{part.letter}{axis}"] = text if position == len(axes) - 1 else f"({text} % {part.sizes[axis]})"
            behind *= part.sizes[axis]
        return texts

    def _begin(self) -> None:
        """Matrices into registers, states and their vectors, inputs of the first step."""
        for index, kind in enumerate(self.multiply_types):
            self.emit(f"{kind} w{index};", 1)
        for index in range(len(self.vector_types)):
            begins = f"w{self.scatters[index]}.begin(m);" if index in self.scatters else f"V{index}::begin(m);"
            self.emit(begins, 1)
        self.emit("m.ready();", 1)
        for index in range(len(self.multiply_types)):
            self.emit(f"w{index}.load(m);", 1)
        self.emit("UNROLL", 1)
        self.emit("for (int tile = 0; tile < TILES; tile++) {", 1)
        self.emit("m.each([&](Thread &t, const Block &b, int thread) {", 2)
        by_space: dict[int, list[str]] = {}
        for (buffer, space, places), name in self.held.items():
            rows = f"n * {buffer.count} + " if buffer.place == "row" else ""
            loaded = self._from(buffer, f"{self._pointer(buffer)}[{rows}{self._place_text(places, space)}]")
            if buffer.place == "row":
                loaded = f"live ? {loaded} : 0"
            tile = "tile" if buffer.place == "row" else "0"
            by_space.setdefault(space, []).append(f"t.{name}[{tile}][j] = {loaded};")
        for state in self.state_reads:
            buffer, space, places = state
            loaded = self._initial(buffer, self._place_text(places, space))
            by_space.setdefault(space, []).append(f"t.{self.member_names[state]}[tile][j] = {loaded};")
        for index, vector in enumerate(self.schedule.vectors):
            if vector.state is None:
                continue
            padded = padded_own(vector, self.geometry)
            for number, places in enumerate(vector.places):
                loaded = self._initial(vector.state, self._place_text(places, vector.space))
                staged = f"V{index}::stage(b, tile, 0, row, {number * padded} + own, {loaded});"
                by_space.setdefault(vector.space, []).append(staged)
        for space, lines in by_space.items():
            self._space_loop(space, lines, 3)
        self.emit("});", 2)
        self.emit("m.sync();", 2)
        for index, vector in enumerate(self.schedule.vectors):
            if vector.state is not None:
                self.emit(f"V{index}::send(m, tile, 0);", 2)
        self.emit("}", 1)
        self._begin_cursors()
        self.ahead = "0"
        if self.fetched:
            self.emit("UNROLL", 1)
            self.emit("for (int tile = 0; tile < TILES; tile++) {", 1)
            self._fetch(2)
            self.emit("}", 1)
            self._advance("read", 1)
        if self.ringed:
            self.emit("ONCE", 1)
            self.emit(f"for (long early = 0; early < {self.ring_steps - 1}; early++) {{", 1)
            self.emit("UNROLL", 2)
            self.emit("for (int tile = 0; tile < TILES; tile++) {", 2)
            self._copy_ring("early", 3)
            self.emit("}", 2)
            self._advance("ring", 2)
            self.emit("}", 1)

    def _initial(self, buffer: Buffer, place: str) -> str:
        pointer = self._pointer(buffer, "state")
        loaded = self._from(buffer, f"{pointer}[n * {buffer.count} + {place}]")
        return f"live && {pointer} ? {loaded} : 0"

    def _from(self, buffer: Buffer, text: str) -> str:
        return FROM_STORAGE.get(buffer.dtype, "{0}").format(text)

    def _place_text(self, places: Places, space: int) -> str:
        """The position of a unit, as an expression of `unit`: affine, or by a table."""
        factor = places[1] - places[0] if space > 1 else 0
        if all(place == places[0] + factor * unit for unit, place in enumerate(places)):
            return f"({places[0]} + unit * {factor})"
        part, index = self.schedule.places.origin[places]
        return f"({index_text(index, self._variables(part))})"

    # ---- addresses, which go on from step to step

    def _begin_cursors(self) -> None:
        """Write where each thread reads and writes at the first step, and how far it is to the next."""
        begin = "(steps - 1) * batch" if self.kernel.reverse else "0"
        sign = "-" if self.kernel.reverse else ""
        lines: dict[int, list[str]] = {}
        for (buffer, space, stride), name in self.cursors.items():
            pointer = f"{self._pointer(buffer)} + ({begin} + b.first + row) * {buffer.count}{' + unit' * stride}"
            self.emit(f"const long next_{name} = {sign}batch * {buffer.count};", 1)
            if self._one_cursor(space):
                lines.setdefault(space, []).append(f"if (j == 0) t.{name} = {pointer};")
            else:
                lines.setdefault(space, []).append(f"t.{name}[j] = {pointer};")
        self.emit("m.each([&](Thread &t, const Block &b, int thread) {", 1)
        self.emit("const int tile = 0;", 2)
        for space, texts in lines.items():
            self._space_loop(space, texts, 2, every=True)
        self._begin_ring(begin, sign)
        self.emit("});", 1)

    def _begin_ring(self, begin: str, sign: str) -> None:
        """Write which pieces of the ring each thread copies, and from where."""
        if not self.ringed:
            return
        slots, first = self.ring_slots, 0
        self.members += [f"const char *ring_from[{slots}];", f"long ring_next[{slots}];"]
        self.members += [f"int ring_tile[{slots}];", f"int ring_row[{slots}];"]
        self.emit("UNROLL", 2)
        self.emit(f"for (int i = 0; i < {slots}; i++) {{", 2)
        self.emit("int x = thread + i * THREADS;", 3)
        self.emit("t.ring_from[i] = nullptr, t.ring_next[i] = 0, t.ring_tile[i] = 0, t.ring_row[i] = 1 << 30;", 3)
        for buffer, space, places in self.ringed:
            own, size = self.geometry.own(space), buffer.dtype.itemsize
            per = 16 // size
            pieces, across = ROWS * own // per, own // per
            self.emit(f"if (x >= {first} && x < {first + pieces}) {{", 3)
            self.emit(
                f"const int row = (x - {first}) / {across}, unit = b.rank * {own} + (x - {first}) % {across} * {per};",
                4,
            )
            self.emit(f"const long at = ({begin} + b.first + row) * {buffer.count} + {places[0]} + unit;", 4)
            self.emit(f"t.ring_from[i] = (const char *)({self._pointer(buffer)} + at);", 4)
            self.emit(f"t.ring_next[i] = {sign}batch * {buffer.count * size};", 4)
            self.emit(f"t.ring_tile[i] = {8 * buffer.count * size};", 4)
            self.emit(f"t.ring_row[i] = unit < {space} ? row : 1 << 30;", 4)
            self.emit("}", 3)
            first += pieces
        self.emit("}", 2)

    def _one_cursor(self, space: int) -> bool:
        """Whether the other elements of a thread are at constant distances from its first one."""
        own, threads = self.geometry.own(space), self.geometry.threads
        return self._elements(space) == 1 or threads % own == 0 or own % threads == 0

    def _at_cursor(self, buffer: Buffer, space: int, places: Places) -> str | None:
        """The element of a sequence that a thread reads or writes at its present step; None where it has no cursor."""
        stride = _stride(places)
        if stride is None or (buffer, space, stride) not in self.cursors:
            return None
        own, threads = self.geometry.own(space), self.geometry.threads
        name, offset = self.cursors[buffer, space, stride], places[0]
        if not self._one_cursor(space):
            return f"t.{name}[j][tile * {8 * buffer.count} + {offset}]"
        if self._elements(space) == 1:
            return f"t.{name}[tile * {8 * buffer.count} + {offset}]"
        if threads % own == 0:
            return f"t.{name}[(tile * 8 + j * {threads // own}) * {buffer.count} + {offset}]"
        across = own // threads
        return f"t.{name}[(tile * 8 + j / {across}) * {buffer.count} + j % {across} * {threads * stride} + {offset}]"

    def _advance(self, place: str, depth: int) -> None:
        """Write the way to the next step, of what is read, written, or copied into the ring."""
        lines = []
        for (buffer, space, _), name in self.cursors.items():
            if buffer.place == place:
                every = "" if self._one_cursor(space) else f"for (int j = 0; j < {self._elements(space)}; j++) "
                lines.append(f"{every}t.{name}{'[j]' if every else ''} += next_{name};")
        if place == "ring" and self.ringed:
            lines.append(f"for (int i = 0; i < {self.ring_slots}; i++) t.ring_from[i] += t.ring_next[i];")
        if lines:
            self.emit("m.each([&](Thread &t, const Block &, int) {", depth)
            for line in lines:
                if line.startswith("for"):
                    self.emit("UNROLL", depth + 1)
                self.emit(line, depth + 1)
            self.emit("});", depth)

    def _fetch(self, depth: int) -> None:
        """Write loads of what a step reads of its sequences into registers."""
        self.emit("m.each([&](Thread &t, const Block &b, int thread) {", depth)
        by_space: dict[int, list[str]] = {}
        for (buffer, space, places), name in self.fetched.items():
            loaded = self._at_cursor(buffer, space, places)
            if loaded is None:
                time = f"(steps - 1 - {self.ahead})" if self.kernel.reverse else self.ahead
                place = self._place_text(places, space)
                loaded = f"{self._pointer(buffer)}[({time} * batch + n) * {buffer.count} + {place}]"
            by_space.setdefault(space, []).append(f"t.{name}[tile][j] = live ? {loaded} : ({STORAGE[buffer.dtype]})0;")
        for space, lines in by_space.items():
            self._space_loop(space, lines, depth + 1)
        self.emit("});", depth)

    @property
    def ring_slots(self) -> int:
        """Pieces of the ring that a thread copies for each step."""
        return -(-self.stage_bytes // 16 // self.geometry.threads)

    def _copy_ring(self, step: str, depth: int) -> None:
        """Write copies of what a step reads into its stage of the ring."""
        if not self.ringed:
            return
        pieces = self.stage_bytes // 16
        self.emit(f"if ({step} < steps) {{", depth)
        self.emit(f"const int stage = (int)({step}) & {self.ring_steps - 1};", depth + 1)
        self.emit("m.each([&](Thread &t, const Block &b, int thread) {", depth + 1)
        self.emit("UNROLL", depth + 2)
        self.emit(f"for (int i = 0; i < {self.ring_slots}; i++) {{", depth + 2)
        if pieces % self.geometry.threads:
            self.emit(f"if (thread + i * THREADS >= {pieces}) continue;", depth + 3)
        to = f"{self.ring_begin} + (stage * TILES + tile) * {self.stage_bytes} + (thread + i * THREADS) * 16"
        self.emit("const bool live = b.first + tile * 8 + t.ring_row[i] < batch;", depth + 3)
        self.emit(f"m.copy(b, {to}, t.ring_from[i] + (live ? tile * t.ring_tile[i] : 0), live);", depth + 3)
        self.emit("}", depth + 2)
        self.emit("});", depth + 1)
        self.emit("}", depth)
        self.emit("m.copied();", depth)

    def _steps(self) -> None:
        for level in range(self.schedule.levels):
            last = level == self.schedule.levels - 1
            self.emit("UNROLL", 2)
            self.emit("for (int tile = 0; tile < TILES; tile++) {", 2)
            self._level(level)
            if last:
                self._copy_ring(f"step + {self.ring_steps - 1}", 3)
            if last and self.fetched:
                self.emit("if (step + 1 < steps) {", 3)
                self.ahead = "(step + 1)"
                self._fetch(4)
                self.emit("}", 3)
            self.emit("}", 2)
        for place in ("write", "read", "ring"):
            self._advance(place, 2)

    def _level(self, level: int) -> None:
        schedule, tiles = self.schedule, self.geometry.tiles
        ringed = level == 0 and bool(self.ringed)
        if ringed:
            # groups of copies that follow this step's; with several levels all of a step are copied behind the last one
            later = (self.ring_steps - 1) * tiles - 1 if self.schedule.levels == 1 else (self.ring_steps - 2) * tiles
            self.emit(f"m.template arrived<{later}>();", 3)
        for index, vector in enumerate(schedule.vectors):
            if vector.first == level and index not in self.scatters:
                self.emit(f"V{index}::wait(m, tile, step);", 3)
        if level - 1 in self.totals_at:
            self._combine(level - 1)
        multiplied = False
        for index, multiplication in enumerate(schedule.multiplications):
            if multiplication.level == level:
                doing = "wait" if self.tilings[index].scattered else "run"
                self.emit(f"w{index}.{doing}(m, tile, step, (int)((step * TILES + tile) & 1));", 3)
                multiplied = True
        if multiplied or ringed:
            self.emit("m.sync();", 3)
        statements = [one for one in schedule.statements if one.level == level]
        totals = self.totals_at.get(level, [])
        self.emit("m.each([&](Thread &t, const Block &b, int thread) {", 3)
        spaces = dict.fromkeys([*(one.part.space for one in statements), *(total.parts[0].space for total in totals)])
        spaces |= dict.fromkeys(
            space
            for multiplication in schedule.multiplications
            if multiplication.level == level
            for block, space, _ in multiplication.products
            if any(self.member_names.get(r) for r in self.products_at(level, space) if r[0] is block.out)
        )
        spaces |= dict.fromkeys(space for buffer, space, _ in self.state_reads if self._carried_at(level, space))
        for space in spaces:
            _LevelWriter(self, level, space).write(
                [one for one in statements if one.part.space == space],
                [total for total in totals if total.parts[0].space == space],
            )
        self.emit("});", 3)
        if totals:
            self.emit("m.sync();", 3)
            index = len(schedule.vectors) + list(self.totals_at).index(level)
            for number, total in enumerate(totals):
                own = self.geometry.own(total.parts[0].space)
                operation = OPERATIONS[total.operator]
                where = self.reduced[total.number]
                self.emit(f"reduce<V{index}, {operation}, {own}>(m, tile, step, {where}, {number});", 3)
        sent = [(i, v) for i, v in enumerate(schedule.vectors) if self._sent_at(v) == level]
        if sent or totals:
            self.emit("m.sync();", 3)
        if totals:
            self.emit(f"V{len(schedule.vectors) + list(self.totals_at).index(level)}::send(m, tile, step);", 3)
        for index, vector in sent:
            if vector.state is None:
                sender = f"w{self.scatters[index]}.send" if index in self.scatters else f"V{index}::send"
                self.emit(f"{sender}(m, tile, step);", 3)
            else:
                self.emit(f"if (step + 1 < steps) V{index}::send(m, tile, step + 1);", 3)
        if level == schedule.levels - 1 and not sent and not totals:
            self.emit("m.sync();", 3)

    def _sent_at(self, vector: Vector) -> int:
        """The level behind which a vector is sent: for a state not before its old value has been read."""
        return max(vector.made, vector.last) if vector.state is not None else vector.made

    def _carried_at(self, level: int, space: int) -> list[Register]:
        """The states of a space whose register takes its next value at the end of a level."""
        found = []
        for state, register in self.state_reads.items():
            at = max(self.last_read[state], self.schedule.registers.get(register, 0))
            if state[1] == space and at == level:
                found.append(state)
        return found

    def _combine(self, level: int) -> None:
        """The totals of a level from the parts of all blocks."""
        index = len(self.schedule.vectors) + list(self.totals_at).index(level)
        self.emit(f"V{index}::wait(m, tile, step);", 3)
        self.emit("m.each([&](Thread &, const Block &b, int thread) {", 3)
        for number, total in enumerate(self.totals_at[level]):
            operation = OPERATIONS[total.operator]
            first = number * ROWS % self.geometry.threads
            self.emit(f"if (thread >= {first} && thread < {first + ROWS}) {{", 4)
            self.emit(f"const int row = thread - {first};", 5)
            self.emit(f"float s = neutral({operation});", 5)
            part = f"V{index}::at(b, tile, step, row, from, {number})"
            self.emit(f"for (int from = 0; from < BLOCKS; from++) s = joined({operation}, s, {part});", 5)
            self.emit(f"{self._total(total)} = s;", 5)
            self.emit("}", 4)
        self.emit("});", 3)
        self.emit("m.sync();", 3)

    def _total(self, total: Total) -> str:
        count = len(self.schedule.totals)
        place = f"{self.totals_begin} + ((tile * {count} + {total.number}) * {ROWS} + row) * 4"
        return f"*(float *)(b.shared + {place})"


def _stride(places: Places) -> int | None:
    """1 where neighbouring units have neighbouring elements, 0 where all have one, None elsewhere."""
    if all(place == places[0] for place in places):
        return 0
    return 1 if all(place == places[0] + unit for unit, place in enumerate(places)) else None


class _LevelWriter:
    """Writes what the threads of one space compute at one level.

    stored   names of values that were stored by an earlier statement, by register
    """

    def __init__(self, text: KernelText, level: int, space: int) -> None:
        self.text, self.level, self.space = text, level, space
        self.stored: dict[Register, str] = {}
        self.read: dict[tuple[Buffer, Places], str] = {}
        self.lines: list[str] = []
        self.count = [0]
        self.bodies: dict[Part, Body] = {}
        self._scalar_bodies: list[Body] = []

    def write(self, statements: list[Statement], totals: list[Total]) -> None:
        text = self.text
        for statement in statements:
            self._statement(statement)
        for register in text.products_at(self.level, self.space):
            if text.member_names.get(register):
                self.lines.append(f"t.{text.member_names[register]}[tile][j] = {self._register(register)};")
        every, after = [], []
        for total in totals:
            name = f"part_{total.number}"
            operation = OPERATIONS[total.operator]
            every.append(f"float {name} = neutral({operation});")
            for part in total.parts:
                value = self._body(part, inner=False).value(total.value)
                self._take(part)
                self.lines.append(f"{name} = joined({operation}, {name}, {value});")
            after.append(f"((float *)(b.shared + {text.reduced[total.number]}))[e] = {name};")
        for state in text._carried_at(self.level, self.space):
            register = text.state_reads[state]
            value = self.stored.get(register) or f"t.{text.member_names[register]}[tile][j]"
            self.lines.append(f"t.{text.member_names[state]}[tile][j] = {value};")
        text._space_loop(self.space, self.lines, 4, every_unit=every, after=after)

    def _body(self, part: Part, *, inner: bool) -> Body:
        if part not in self.bodies:
            self.bodies[part] = Body(
                lambda b, load, at: self._load(b, load, part, at, inner), self.text._variables(part), self.count
            )
        return self.bodies[part]

    def _take(self, part: Part) -> None:
        """Move the lines of a body behind those written by now."""
        self.lines += self.bodies[part].lines
        self.bodies[part].lines = []

    def _statement(self, statement: Statement) -> None:
        part, text = statement.part, self.text
        register = (statement.buffer, part.space, text.schedule.places(statement.index, part))
        if statement.operator:
            name = self._inner_loops(statement)
        else:
            body = self._body(part, inner=False)
            name = body.named(body.value(statement.value), computed_type(statement.buffer.dtype))
            self._take(part)
        self.stored[register] = name
        if text.member_names.get(register):
            self.lines.append(f"t.{text.member_names[register]}[tile][j] = {name};")
        buffer = statement.buffer
        place = index_text(statement.index, text._variables(part))
        converted = TO_STORAGE.get(buffer.dtype, f"({STORAGE[buffer.dtype]}){{0}}").format(name)
        if buffer.place == "write":
            self.lines.append(f"if (live) {self._written(buffer, register[2], place)} = {converted};")
        if buffer.place == "next":
            self.lines.append(
                f"if (live && step + 1 == steps) {text._pointer(buffer)}[n * {buffer.count} + {place}] = {converted};"
            )
        for index, vector in enumerate(text.schedule.vectors):
            if vector.of is buffer:
                number = vector.places.index(register[2])
                padded = padded_own(vector, text.geometry)
                slot = "step + 1" if vector.state is not None else "step"
                to = f"w{text.scatters[index]}.stage" if index in text.scatters else f"V{index}::stage"
                self.lines.append(f"{to}(b, tile, {slot}, row, {number * padded} + own, {name});")

    def _written(self, buffer: Buffer, places: Places, place: str) -> str:
        """The element of an output sequence that a unit writes."""
        cursor = self.text._at_cursor(buffer, self.space, places)
        return cursor or f"{self.text._pointer(buffer)}[(time * batch + n) * {buffer.count} + {place}]"

    def _inner_loops(self, statement: Statement) -> str:
        """Write a reduction that each unit computes by itself; returns the name of its value."""
        part, operator = statement.part, statement.operator
        self.count[0] += 1
        name = f"sum_{self.count[0]}"
        variables = {**self.text._variables(part), **{f"k{axis}": f"k{axis}" for axis in range(len(statement.over))}}
        body = Body(lambda b, load, at: self._load(b, load, part, at, inner=True), variables, self.count)
        value = body.value(statement.value)
        search = operator in ("argmax", "argmin")
        if search:
            self.lines.append(f"float best_{name} = 0; {computed_type(statement.buffer.dtype)} {name} = -1;")
        else:
            self.lines.append(f"float {name} = neutral({OPERATIONS[operator]});")
        loops = "".join(
            f"for (int k{axis} = 0; k{axis} < {size}; k{axis}++) " for axis, size in enumerate(statement.over)
        )
        self.lines.append(f"{loops}{{")
        self.lines += [f"    {line}" for line in body.lines]
        if search:
            if len(statement.over) != 1:
                raise EngineRefusal(f"the operator {operator} over several axes is not covered by kernels.")
            sign = ">" if operator == "argmax" else "<"
            better = f"best_{name} == best_{name} && ({value} {sign} best_{name} || {value} != {value})"
            self.lines.append(f"    if ({name} < 0 || ({better})) {{ best_{name} = {value}; {name} = k0; }}")
        else:
            self.lines.append(f"    {name} = joined({OPERATIONS[operator]}, {name}, {value});")
        self.lines.append("}")
        return name

    # ---- loads

    def _load(self, body: Body, load: Load | Fetch, part: Part, offset: str | None, inner: bool) -> str:
        text, buffer = self.text, load.buffer
        if buffer in text.schedule.scalars:
            return self._scalar(buffer, part)
        total = next((total for total in text.schedule.totals if total.buffer is buffer), None)
        if total is not None:
            return text._total(total)
        place = offset or index_text(load.index, body.variables)
        if buffer.place in ("read", "row", "fixed"):
            return self._input(load, part, place, inner)
        register = text._register(load, part, inner)
        if register is not None:
            return self._register(register)
        vector = text.schedule.vector_of(buffer)
        return f"get_{text.schedule.vectors.index(vector)}(b, tile, step, row, {place})"

    def _scalar(self, buffer: Buffer, part: Part) -> str:
        """A number of the row, computed by each unit for itself."""
        key = (buffer, ())
        if key not in self.read:
            inside = scalar_part(part)
            body = Body(
                lambda b, load, at: self._load(b, load, inside, at, inner=False),
                self.text._variables(inside),
                self.count,
            )
            value = body.value(self.text.schedule.scalars[buffer].value)
            self.lines += body.lines
            self.read[key] = value
            self._scalar_bodies.append(body)  # its expressions keep their ids
        return self.read[key]

    def _input(self, load: Load | Fetch, part: Part, place: str, inner: bool) -> str:
        text, buffer = self.text, load.buffer
        if isinstance(load, Load) and not (inner and uses(load.index, "k")):
            key = (buffer, part.space, text.schedule.places(load.index, part))
            if key in text.ringed:
                stage = f"((int)step & {text.ring_steps - 1}) * TILES + tile"
                where = f"{text.ring_begin} + ({stage}) * {text.stage_bytes} + {text.ringed[key]}"
                return text._from(buffer, f"((const {STORAGE[buffer.dtype]} *)(b.shared + {where}))[e]")
            if key in text.fetched:
                return text._from(buffer, f"t.{text.fetched[key]}[tile][j]")
            if key in text.held:
                return f"t.{text.held[key]}[{'tile' if buffer.place == 'row' else '0'}][j]"
        row = {"read": f"(time * batch + n) * {buffer.count} + ", "row": f"n * {buffer.count} + ", "fixed": ""}[
            buffer.place
        ]
        loaded = text._from(buffer, f"{text._pointer(buffer)}[{row}{place}]")
        return loaded if buffer.place == "fixed" else f"(live ? {loaded} : 0)"

    def _register(self, register: Register) -> str:
        """A value of this unit: stored at this level, kept by the thread, or a sum of a product."""
        if register in self.stored:
            return self.stored[register]
        text = self.text
        stored_at = text.schedule.registers.get(register)
        if text.member_names.get(register) and (stored_at is None or stored_at < self.level):
            return f"t.{text.member_names[register]}[tile][j]"
        self.count[0] += 1
        name = f"p{self.count[0]}"
        self.lines.append(f"const float {name} = {text.product_sum(register)};")
        self.stored[register] = name
        return name
