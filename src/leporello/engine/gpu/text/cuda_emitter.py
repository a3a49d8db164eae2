"""`KernelText`: from a schedule and a geometry to the text of a kernel, for device.cuh or, without a GPU, for host.h.

The text is a function `sweep` of all steps. Its phases are calls of the library (products, exchanges, reductions) and
`m.each(...)`: what each thread computes for its units.
"""

from __future__ import annotations

from importlib import resources

from leporello.engine.gpu.division.geometry import EXCHANGES, ROWS, Geometry, padded_own
from leporello.engine.gpu.division.schedule import Schedule, Total, Vector
from leporello.engine.gpu.text.chip_writer import ChipWriter
from leporello.engine.gpu.text.inputs import Inputs, InputWriter, from_storage
from leporello.engine.gpu.text.level_writer import OPERATIONS
from leporello.engine.gpu.text.lines import Lines, place_text
from leporello.engine.gpu.text.matrix_text import matrix_elements, vector_reader
from leporello.engine.gpu.text.memory import Memory
from leporello.engine.gpu.text.registers import Registers
from leporello.kernel.description import Buffer

FUNCTIONS_PLACE = "// (functions.cuh stands here)"  # in the libraries


def library_text(name: str) -> str:
    """The text of one of the files beside this one."""
    return resources.files("leporello.engine.gpu.text").joinpath(name).read_text(encoding="utf-8")


class KernelText:
    """The text of a kernel, with the memory it needs; refuses a kernel that does not fit on the chip."""

    def __init__(self, schedule: Schedule, geometry: Geometry) -> None:
        self.schedule, self.geometry, self.kernel = schedule, geometry, schedule.kernel
        self.inputs = Inputs(schedule, geometry)
        self.memory = Memory(schedule, geometry, self.inputs.stage_bytes, self.inputs.ring_steps)
        self.registers = Registers(schedule, geometry)
        self.lines = Lines()
        self.reader = InputWriter(self.lines, self.inputs, self.memory)
        self._place_ring()
        self._functions()
        self._sweep()

    def text(self, library: str, defined: dict[str, int]) -> str:
        """The whole text for one of the libraries, device.cuh or host.h, with further macros."""
        macros = {
            "BLOCKS": self.geometry.blocks,
            "TILES": self.geometry.tiles,
            "HEADS": self.geometry.heads,
            "THREADS": self.geometry.threads,
            "WORDS": self.memory.word_count,
            "EXCHANGE": EXCHANGES.index(self.geometry.exchange),
            "SHARED": self.memory.shared_bytes,
            **defined,
        }
        lines = [f"/* {self.kernel.name}, {'backwards' if self.kernel.reverse else 'forwards'} in time */"]
        lines += [f"#define {name} {value}" for name, value in macros.items()]
        whole = library_text(library).replace(FUNCTIONS_PLACE, library_text("functions.cuh"))
        return "\n".join([*lines, whole, *self.lines.text]) + "\n"

    def _place_ring(self) -> None:
        """Where a step copies the inputs of a later one, and where it waits for those of the next one.

        Copies follow the first sends: they are made while blocks wait for each other. The next step's inputs are
        waited for at the last level, where that is a later one with a barrier; else by the next step itself.
        """
        last = self.schedule.levels - 1
        sending = {*map(_sent_at, self.schedule.vectors), *self.memory.totals_at}
        self.copying_level = min(sending, default=last)
        multiplies_last = any(one.level == last for one in self.schedule.multiplications)
        self.waits_ahead = bool(self.inputs.ringed) and self.copying_level < last and multiplies_last

    # ---- the whole

    def _functions(self) -> None:
        for index, kind in enumerate(self.memory.vector_types):
            self.lines.emit(f"typedef {kind} V{index};")
        for index, vector in enumerate(self.schedule.vectors):
            if vector.by_units:
                vector_reader(self.lines, self.geometry, index, vector)
        for index in range(len(self.schedule.multiplications)):
            matrix_elements(self.lines, self.schedule, self.memory, index)
        self.lines.emit("struct Thread {")
        for member in (*self.registers.members, *self.inputs.members):
            self.lines.emit(member, 1)
        self.lines.emit("};")

    def _sweep(self) -> None:
        lines = self.lines
        lines.emit("template <class M>")
        lines.emit("INLINE void sweep(M &m, const Given &given) {")
        lines.emit("const long steps = (long)given.word[0], batch = (long)given.word[1];", 1)
        self._begin()
        lines.emit("ONCE", 1)
        lines.emit("for (long step = 0; step < steps; step++) {", 1)
        lines.emit(f"const long time = {'steps - 1 - step' if self.kernel.reverse else 'step'};", 2)
        lines.emit("(void)time;", 2)
        for level in range(self.schedule.levels):
            lines.tiles(2)
            self._level(level)
            lines.emit("}", 2)
        for place in ("write", "read", "ring"):
            self.reader.advance(place, 2)
        lines.emit("}", 1)
        lines.emit("m.finish();", 1)
        lines.emit("}")
        lines.emit("KERNEL(sweep)")

    # ---- before the first step

    def _begin(self) -> None:
        """Matrices into registers, states and their vectors, inputs of the first step."""
        lines, memory = self.lines, self.memory
        for index, kind in enumerate(memory.multiply_types):
            lines.emit(f"{kind} w{index};", 1)
        for index in range(len(memory.vector_types)):
            scatter = memory.scatters.get(index)
            lines.emit(f"V{index}::begin(m);" if scatter is None else f"w{scatter}.begin(m);", 1)
        lines.emit("m.ready();", 1)
        for index in range(len(memory.multiply_types)):
            lines.emit(f"w{index}.load(m);", 1)
        lines.tiles(1)
        lines.each(2, self._first_values)
        lines.emit("m.sync();", 2)
        for index, vector in enumerate(self.schedule.vectors):
            if vector.state is not None:
                lines.emit(f"V{index}::send(m, tile, 0);", 2)
        lines.emit("}", 1)
        self.reader.first_steps()
        if self.waits_ahead:
            self._next_inputs(1)
            lines.emit("m.sync();", 1)

    def _first_values(self, depth: int) -> None:
        """Invariants and states into registers, states into the vectors that gather them."""
        by_space: dict[int, list[str]] = {}
        for (buffer, space, places), name in self.inputs.held.items():
            is_row = buffer.place == "row"
            rows = f"n * {buffer.count} + " if is_row else ""
            place = place_text(self.schedule, places, space)
            loaded = from_storage(buffer, f"{self.memory.pointer(buffer)}[{rows}{place}]")
            text = f"t.{name}[tile][j] = live ? {loaded} : 0;" if is_row else f"t.{name}[0][j] = {loaded};"
            by_space.setdefault(space, []).append(text)
        for register in self.registers.states:
            buffer, space, places = register
            loaded = self._initial(buffer, place_text(self.schedule, places, space))
            by_space.setdefault(space, []).append(f"t.{self.registers.names[register]}[tile][j] = {loaded};")
        for index, vector in enumerate(self.schedule.vectors):
            if vector.state is None:
                continue
            for number, places in enumerate(vector.places):
                loaded = self._initial(vector.state, place_text(self.schedule, places, vector.space))
                at = number * padded_own(vector, self.geometry)
                by_space.setdefault(vector.space, []).append(f"V{index}::stage(b, tile, 0, row, {at} + own, {loaded});")
        for space, texts in by_space.items():
            self.lines.space_loop(self.geometry, space, texts, depth)

    def _initial(self, buffer: Buffer, place: str) -> str:
        """An element of an initial state; a null pointer means zeros."""
        pointer = self.memory.pointer(buffer, "state")
        return f"live && {pointer} ? {from_storage(buffer, f'{pointer}[n * {buffer.count} + {place}]')} : 0"

    # ---- a level

    def _level(self, level: int) -> None:
        """What one tile does at a level, and what it reads ahead."""
        lines, last = self.lines, level == self.schedule.levels - 1
        totals = self.memory.totals_at.get(level, [])
        self._arrive(level)

        def spaces(depth: int) -> None:
            for space in self.registers.spaces_at(level):
                ChipWriter(self.registers, self.inputs, self.memory, level, space).write(lines, depth)

        lines.each(3, spaces)
        self._leave(level, totals)
        if level == self.copying_level:  # a barrier of this step is before: nobody reads the inputs of the last step
            self.reader.copy(f"step + {self.inputs.ring_steps - 1}", 3)
        if last and self.inputs.fetched:
            lines.emit("if (step + 1 < steps) {", 3)
            self.reader.fetch("(step + 1)", 4)
            lines.emit("}", 3)

    def _arrive(self, level: int) -> None:
        """Until what the level reads is there; then its products."""
        lines, tiles, ring_steps = self.lines, self.geometry.tiles, self.inputs.ring_steps
        ringed = level == 0 and bool(self.inputs.ringed) and not self.waits_ahead
        if ringed:  # behind the copies of this tile are those of other tiles and steps
            copying = level == self.copying_level
            self.reader.arrived((ring_steps - 1) * tiles - 1 if copying else (ring_steps - 2) * tiles, 3)
        for index, vector in enumerate(self.schedule.vectors):
            if vector.first == level and index not in self.memory.scatters:
                lines.emit(f"V{index}::wait(m, tile, step);", 3)
        if level - 1 in self.memory.totals_at:
            self._combine(level - 1)
        multiplied = False
        for index, multiplication in enumerate(self.schedule.multiplications):
            if multiplication.level == level:
                doing = "wait" if self.memory.tilings[index].scattered else "run"
                lines.emit(f"w{index}.{doing}(m, tile, step, (int)((step * TILES + tile) & 1));", 3)
                multiplied = True
        if self.waits_ahead and level == self.schedule.levels - 1:
            self._next_inputs(3)
        if multiplied or ringed:
            lines.emit("m.sync();", 3)

    def _next_inputs(self, depth: int) -> None:
        """Until the inputs of the next step are there, for this thread; those of later steps may be under way."""
        self.reader.arrived((self.inputs.ring_steps - 2) * self.geometry.tiles, depth)

    def _leave(self, level: int, totals: list[Total]) -> None:
        """Send what the level has made."""
        lines = self.lines
        sent = [(i, v) for i, v in enumerate(self.schedule.vectors) if _sent_at(v) == level]
        if totals:
            lines.emit("m.sync();", 3)
            vector = self.memory.totals_vector(level)
            for number, total in enumerate(totals):
                form = f"V{vector}, {OPERATIONS[total.operator]}, {self.geometry.own(total.parts[0].space)}"
                lines.emit(f"reduce<{form}>(m, tile, step, {self.memory.reduced[total.number]}, {number});", 3)
        if sent or totals:
            lines.emit("m.sync();", 3)
        if totals:
            lines.emit(f"V{self.memory.totals_vector(level)}::send(m, tile, step);", 3)
        for index, one in sent:
            scatter = self.memory.scatters.get(index)
            if one.state is not None:
                lines.emit(f"if (step + 1 < steps) V{index}::send(m, tile, step + 1);", 3)
            else:
                sender = f"V{index}::send" if scatter is None else f"w{scatter}.send"
                lines.emit(f"{sender}(m, tile, step);", 3)

    def _combine(self, level: int) -> None:
        """The totals of a level from the parts of all blocks."""
        lines, vector = self.lines, self.memory.totals_vector(level)
        lines.emit(f"V{vector}::wait(m, tile, step);", 3)
        lines.emit("m.each([&](Thread &, const Block &b, int thread) {", 3)
        for number, total in enumerate(self.memory.totals_at[level]):
            operation = OPERATIONS[total.operator]
            first = number * ROWS % self.geometry.threads
            lines.emit(f"if (thread >= {first} && thread < {first + ROWS}) {{", 4)
            lines.emit(f"const int row = thread - {first};", 5)
            lines.emit(f"float s = neutral({operation});", 5)
            part = f"V{vector}::at(b, tile, step, row, from, {number})"
            lines.emit(f"for (int from = 0; from < BLOCKS; from++) s = joined({operation}, s, {part});", 5)
            lines.emit(f"{self.memory.total(total)} = s;", 5)
            lines.emit("}", 4)
        lines.emit("});", 3)
        lines.emit("m.sync();", 3)


def _sent_at(vector: Vector) -> int:
    """The level behind which a vector is sent: for a state not before its old value has been read."""
    return max(vector.made, vector.last) if vector.state is not None else vector.made
