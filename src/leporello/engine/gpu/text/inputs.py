"""`Inputs`: how threads read sequences and invariants, and write sequences.

Pieces of 16 bytes are copied into a ring in shared memory, some steps ahead. Other elements of sequences are loaded
into registers one step ahead; where they are one number for a row, such as a mask, two steps ahead, as the first
statements of a step read it. Invariants stay in registers. Addresses go on from step to step (cursors), so that none is
computed in the loop.
"""

from __future__ import annotations

from leporello.engine.gpu.division.geometry import ROWS, Geometry
from leporello.engine.gpu.division.schedule import Places, Schedule, loads, uses
from leporello.engine.gpu.text.cuda_expressions import FROM_STORAGE, STORAGE, computed_type
from leporello.engine.gpu.text.lines import Lines, place_text
from leporello.engine.gpu.text.memory import Memory
from leporello.engine.gpu.text.registers import elements_of, values
from leporello.kernel.description import Buffer, Fetch

RING_BYTES = 48 * 1024  # of inputs of four steps; where that does not suffice, of two
MOST_HELD = 16  # numbers of invariants that a thread keeps in registers

Input = tuple[Buffer, int, Places]  # a buffer, the space of the units that read it, and where each reads
Distance = tuple[
    int, int
]  # from a unit's element to the next one's, 0 or 1; from a head's first one to the next head's


class Inputs:
    """Which inputs are read in which way.

    ringed       sequences of which a block reads whole pieces of 16 bytes, with where they are in a stage of the ring
    fetched      other sequences, with the names of registers
    held         invariants, with the names of registers
    cursors      names of addresses, by buffer, space, and the distance from one unit's element to the next one's
    stage_bytes  of one step in the ring, for one tile
    ring_steps   stages of the ring
    members      of the struct `Thread`, as C++
    """

    def __init__(self, schedule: Schedule, geometry: Geometry) -> None:
        self.schedule, self.geometry = schedule, geometry
        self.ringed: dict[Input, int] = {}
        self.fetched: dict[Input, str] = {}
        self.held: dict[Input, str] = {}
        self.cursors: dict[tuple[Buffer, int, Distance], str] = {}
        self.members: list[str] = []
        self.stage_bytes = 0
        for statement in schedule.statements:
            if statement.buffer.place == "write":
                self._add_cursor(
                    statement.buffer, statement.part.space, schedule.places(statement.index, statement.part)
                )
        held = 0
        for buffer, space, places in self._reads():
            name, elements = f"in_{len(self.fetched) + len(self.held)}", elements_of(space, geometry)
            if buffer.place == "read" and self._in_pieces(buffer, space, places):
                self.ringed[buffer, space, places] = self.stage_bytes
                self.stage_bytes += ROWS * geometry.own(space) * buffer.dtype.itemsize
            elif buffer.place == "read":
                self.fetched[buffer, space, places] = name
                self._add_cursor(buffer, space, places)
                for one in (name, f"later_{name}") if is_row_number(buffer) else (name,):
                    self.members.append(f"{STORAGE[buffer.dtype]} {one}[{geometry.tiles}][{elements}];")
            else:
                rows = geometry.tiles if buffer.place == "row" else 1
                if held + elements * rows <= MOST_HELD:
                    held += elements * rows
                    self.held[buffer, space, places] = name
                    self.members.append(f"{computed_type(buffer.dtype)} {name}[{rows}][{elements}];")
        self.ring_steps = 4 if 4 * geometry.tiles * self.stage_bytes <= RING_BYTES else 2
        if self.ringed:
            self.members += [f"const char *ring_from[{self.ring_slots}];", f"long ring_next[{self.ring_slots}];"]
            self.members += [f"int ring_tile[{self.ring_slots}];", f"int ring_row[{self.ring_slots}];"]

    def _reads(self) -> dict[Input, None]:
        found: dict[Input, None] = {}
        for value, part, _, inner in values(self.schedule):
            for load, inside in loads(self.schedule.scalars, value, part):
                if isinstance(load, Fetch) or load.buffer.place not in ("read", "row", "fixed"):
                    continue
                if not (inner and uses(load.index, "k")):
                    found.setdefault((load.buffer, part.space, self.schedule.places(load.index, inside)))
        return found

    def _in_pieces(self, buffer: Buffer, space: int, places: Places) -> bool:
        """Whether a block reads neighbouring elements of a sequence, in whole pieces of 16 bytes."""
        per = 16 // buffer.dtype.itemsize
        distance = self.distance(places)
        if distance is None or distance[0] != 1:
            return False
        sizes = (self.geometry.own(space), int(buffer.count), places[0], self.geometry.in_head(space), distance[1])
        return all(size % per == 0 for size in sizes)

    def distance(self, places: Places) -> Distance | None:
        """How positions of neighbouring units differ, if they do so in the same way in each head."""
        in_head = self.geometry.in_head(len(places))
        stride = places[1] - places[0] if in_head > 1 else 0
        head_step = places[in_head] - places[0] if len(places) > in_head else 0
        if stride not in (0, 1):
            return None
        wanted = (places[0] + u // in_head * head_step + u % in_head * stride for u in range(len(places)))
        return (stride, head_step) if all(a == b for a, b in zip(places, wanted, strict=True)) else None

    @property
    def ring_slots(self) -> int:
        """Pieces of the ring that a thread copies for each step."""
        return -(-self.stage_bytes // 16 // self.geometry.threads)

    # ---- cursors

    def _add_cursor(self, buffer: Buffer, space: int, places: Places) -> None:
        """Let threads keep the address of a sequence, where neighbouring units have neighbouring elements or one."""
        distance = self.distance(places)
        if distance is None or (buffer, space, distance) in self.cursors:
            return
        name = self.cursors[buffer, space, distance] = f"at_{len(self.cursors)}"
        constant = "const " if buffer.place == "read" else ""
        text = f"{constant}{STORAGE[buffer.dtype]} *{name}"
        self.members.append(f"{text};" if self._is_one(space) else f"{text}[{elements_of(space, self.geometry)}];")

    def _is_one(self, space: int) -> bool:
        """Whether the other elements of a thread are at constant distances from its first one."""
        own, threads = self.geometry.own(space), self.geometry.threads
        return elements_of(space, self.geometry) == 1 or threads % own == 0 or own % threads == 0

    def at_cursor(self, buffer: Buffer, space: int, places: Places) -> str | None:
        """The element of a sequence that a thread reads or writes at its present step; None where it has no cursor."""
        distance = self.distance(places)
        if distance is None or (buffer, space, distance) not in self.cursors:
            return None
        own, threads = self.geometry.own(space), self.geometry.threads
        name, offset, stride = self.cursors[buffer, space, distance], places[0], distance[0]
        if not self._is_one(space):
            return f"t.{name}[j][tile * {8 * buffer.count} + {offset}]"
        if elements_of(space, self.geometry) == 1:
            return f"t.{name}[tile * {8 * buffer.count} + {offset}]"
        if threads % own == 0:
            return f"t.{name}[(tile * 8 + j * {threads // own}) * {buffer.count} + {offset}]"
        across = own // threads
        return f"t.{name}[(tile * 8 + j / {across}) * {buffer.count} + j % {across} * {threads * stride} + {offset}]"


class InputWriter:
    """Writes the phases in which inputs are read ahead, and addresses go on."""

    def __init__(self, lines: Lines, inputs: Inputs, memory: Memory) -> None:
        self.lines, self.inputs, self.memory = lines, inputs, memory
        self.geometry, self.kernel = inputs.geometry, inputs.schedule.kernel
        self.sign = "-" if self.kernel.reverse else ""
        self.begin = "(steps - 1) * batch" if self.kernel.reverse else "0"

    def first_steps(self) -> None:
        """Addresses of the first step, and what is read before it."""
        lines, inputs = self.lines, self.inputs
        for (buffer, _, _), name in inputs.cursors.items():
            lines.emit(f"const long next_{name} = {self.sign}batch * {buffer.count};", 1)
        lines.each(1, self._begin)
        if inputs.fetched:
            if any(is_row_number(buffer) for buffer, _, _ in inputs.fetched):
                lines.tiles(1)
                self._fetch_first(2)
                lines.emit("}", 1)
                self.advance("read", 1, row_numbers=True)
            lines.tiles(1)
            self.fetch("0", 2)
            lines.emit("}", 1)
            self.advance("read", 1)
        if inputs.ringed:
            lines.emit("ONCE", 1)
            lines.emit(f"for (long early = 0; early < {inputs.ring_steps - 1}; early++) {{", 1)
            lines.tiles(2)
            self.copy("early", 3)
            lines.emit("}", 2)
            self.advance("ring", 2)
            lines.emit("}", 1)

    def _begin(self, depth: int) -> None:
        by_space: dict[int, list[str]] = {}
        for (buffer, space, distance), name in self.inputs.cursors.items():
            unit = _from_first("mine", distance)
            pointer = f"{self.memory.pointer(buffer)} + ({self.begin} + b.first + row) * {buffer.count}{unit}"
            one = self.inputs._is_one(space)
            text = f"if (j == 0) t.{name} = {pointer};" if one else f"t.{name}[j] = {pointer};"
            by_space.setdefault(space, []).append(text)
        self.lines.emit("const int tile = 0;", depth)
        for space, texts in by_space.items():
            self.lines.space_loop(self.geometry, space, texts, depth, unconditional=True)
        if self.inputs.ringed:
            self._begin_ring(depth)

    def _begin_ring(self, depth: int) -> None:
        """Which pieces of the ring each thread copies, and from where."""
        lines, first = self.lines, 0
        lines.emit("UNROLL", depth)
        lines.emit(f"for (int i = 0; i < {self.inputs.ring_slots}; i++) {{", depth)
        lines.emit("const int x = thread + i * THREADS;", depth + 1)
        lines.emit("t.ring_from[i] = nullptr, t.ring_next[i] = 0;", depth + 1)
        lines.emit("t.ring_tile[i] = 0, t.ring_row[i] = 1 << 30;", depth + 1)
        for buffer, space, places in self.inputs.ringed:
            own, size = self.geometry.own(space), buffer.dtype.itemsize
            per = 16 // size
            pieces, across = ROWS * own // per, own // per
            lines.emit(f"if (x >= {first} && x < {first + pieces}) {{", depth + 1)
            mine = f"b.rank * {own} + (x - {first}) % {across} * {per}"
            lines.emit(f"const int row = (x - {first}) / {across}, mine = {mine};", depth + 2)
            unit = _from_first("mine", self.inputs.distance(places) or (1, 0))
            at = f"({self.begin} + b.first + row) * {buffer.count} + {places[0]}{unit}"
            lines.emit(f"t.ring_from[i] = (const char *)({self.memory.pointer(buffer)} + {at});", depth + 2)
            lines.emit(f"t.ring_next[i] = {self.sign}batch * {buffer.count * size};", depth + 2)
            lines.emit(f"t.ring_tile[i] = {8 * buffer.count * size};", depth + 2)
            lines.emit(f"t.ring_row[i] = mine < {self.geometry.in_head(space)} ? row : 1 << 30;", depth + 2)
            lines.emit("}", depth + 1)
            first += pieces
        lines.emit("}", depth)

    def fetch(self, step: str, depth: int) -> None:
        """Loads of what a step reads of its sequences into registers; of row numbers, those of the next step."""
        by_space: dict[int, list[str]] = {}
        for (buffer, space, places), name in self.inputs.fetched.items():
            texts = by_space.setdefault(space, [])
            if is_row_number(buffer):
                loaded = self._loaded(buffer, space, places, f"({step} + 1)")
                texts.append(f"t.{name}[tile][j] = t.later_{name}[tile][j];")
                texts.append(f"t.later_{name}[tile][j] = live && {step} + 1 < steps ? {loaded} : 0;")
            else:
                loaded = self._loaded(buffer, space, places, step)
                texts.append(f"t.{name}[tile][j] = live ? {loaded} : ({STORAGE[buffer.dtype]})0;")
        self._in_spaces(by_space, depth)

    def _fetch_first(self, depth: int) -> None:
        """Loads of the first step's numbers of rows."""
        by_space: dict[int, list[str]] = {}
        for (buffer, space, places), name in self.inputs.fetched.items():
            if is_row_number(buffer):
                loaded = self._loaded(buffer, space, places, "0")
                by_space.setdefault(space, []).append(f"t.later_{name}[tile][j] = live ? {loaded} : 0;")
        self._in_spaces(by_space, depth)

    def _loaded(self, buffer: Buffer, space: int, places: Places, step: str) -> str:
        """An element of a sequence: at a cursor, if there is one, else of a step."""
        loaded = self.inputs.at_cursor(buffer, space, places)
        if loaded is not None:
            return loaded
        time = f"(steps - 1 - {step})" if self.kernel.reverse else step
        place = place_text(self.inputs.schedule, places, space)
        return f"{self.memory.pointer(buffer)}[({time} * batch + n) * {buffer.count} + {place}]"

    def _in_spaces(self, by_space: dict[int, list[str]], depth: int) -> None:
        """Texts for each element of the spaces."""

        def loops(depth: int) -> None:
            for space, texts in by_space.items():
                self.lines.space_loop(self.geometry, space, texts, depth)

        self.lines.each(depth, loops)

    def copy(self, step: str, depth: int) -> None:
        """Copies of what a step reads into its stage of the ring; a group of copies, if an empty one, at every step."""
        inputs, lines, pieces = self.inputs, self.lines, self.inputs.stage_bytes // 16
        if not inputs.ringed:
            return

        def copies(depth: int) -> None:
            lines.emit("UNROLL", depth)
            lines.emit(f"for (int i = 0; i < {inputs.ring_slots}; i++) {{", depth)
            if pieces % self.geometry.threads:
                lines.emit(f"if (thread + i * THREADS >= {pieces}) continue;", depth + 1)
            stage = f"(stage * TILES + tile) * {inputs.stage_bytes}"
            to = f"{self.memory.ring_begin} + {stage} + (thread + i * THREADS) * 16"
            lines.emit("const bool live = b.first + tile * 8 + t.ring_row[i] < batch;", depth + 1)
            lines.emit(f"m.copy(b, {to}, t.ring_from[i] + (live ? tile * t.ring_tile[i] : 0), live);", depth + 1)
            lines.emit("}", depth)

        lines.emit(f"if ({step} < steps) {{", depth)
        lines.emit(f"const int stage = (int)({step}) & {inputs.ring_steps - 1};", depth + 1)
        lines.each(depth + 1, copies)
        lines.emit("}", depth)
        lines.emit("m.copied();", depth)

    def arrived(self, later: int, depth: int) -> None:
        """Until all but the last `later` groups of copies are there, for this thread."""
        self.lines.emit(f"m.template arrived<{later}>();", depth)

    def advance(self, place: str, depth: int, *, row_numbers: bool = False) -> None:
        """The way to the next step, of what is read ("read"), written ("write"), or copied ("ring").

        row_numbers   of numbers of rows alone
        """
        texts = []
        for (buffer, space, _), name in self.inputs.cursors.items():
            if buffer.place == place and (is_row_number(buffer) or not row_numbers):
                every = (
                    ""
                    if self.inputs._is_one(space)
                    else f"for (int j = 0; j < {elements_of(space, self.geometry)}; j++) "
                )
                texts.append(f"{every}t.{name}{'[j]' if every else ''} += next_{name};")
        if place == "ring" and self.inputs.ringed:
            texts.append(f"for (int i = 0; i < {self.inputs.ring_slots}; i++) t.ring_from[i] += t.ring_next[i];")
        if not texts:
            return
        self.lines.emit("m.each([&](Thread &t, const Block &, int) {", depth)
        for text in texts:
            if text.startswith("for"):
                self.lines.emit("UNROLL", depth + 1)
            self.lines.emit(text, depth + 1)
        self.lines.emit("});", depth)


def is_row_number(buffer: Buffer) -> bool:
    """Whether a sequence has one number for a row."""
    return buffer.count == 1


def from_storage(buffer: Buffer, text: str) -> str:
    """An element of a buffer, as it is computed with."""
    return FROM_STORAGE.get(buffer.dtype, "{0}").format(text)


def _from_first(mine: str, distance: Distance) -> str:
    """The way from a sequence's first element of a part to that of a unit, `mine` of its head."""
    stride, head_step = distance
    return (f" + b.head * {head_step}" if head_step else "") + f" + {mine}" * stride
