"""`LevelsText`: from a schedule to kernels for its levels, one each, for device.cuh or, without a GPU, for host.h.

A step is a row of levels; before a level its products are torch's, and what the level computes is one kernel. Where the
first level has no product, one kernel does the last level of a step and the first one of the next step. Besides, there
is a kernel that sets the states before the first step, and one that fills the table that the others read.
"""

from __future__ import annotations

from dataclasses import dataclass

from leporello.engine.gpu.division.geometry import EXCHANGES, LEVELS
from leporello.engine.gpu.division.schedule import Places, Schedule
from leporello.engine.gpu.text.cuda_emitter import FUNCTIONS_PLACE, library_text
from leporello.engine.gpu.text.cuda_expressions import TO_STORAGE
from leporello.engine.gpu.text.global_writer import GlobalWriter
from leporello.engine.gpu.text.inputs import from_storage
from leporello.engine.gpu.text.levels_memory import LevelsMemory, vector_dtype
from leporello.engine.gpu.text.lines import Lines, place_text
from leporello.engine.gpu.text.registers import Registers
from leporello.errors import EngineRefusal
from leporello.kernel.description import Buffer

MOST_ROW_THREADS = 512


@dataclass(frozen=True)
class LevelKernel:
    """One of the kernels.

    rows    whether it has a block for each row, and not a thread for each row and unit
    space   the largest one of its units
    """

    name: str
    rows: bool
    space: int

    def blocks(self, batch: int) -> int:
        return batch if self.rows else -(-batch * self.space // LEVELS.threads)


class LevelsText:
    """The text of the kernels, with the memory they need; refuses products that torch does not have.

    first     sets the states before the first step; None where a step has no state that it reads
    kernels   by level; None where a level computes nothing
    joint     does the last level of the step before, then the first level; None where a product is between them, or
              values of other units
    """

    geometry = LEVELS

    def __init__(self, schedule: Schedule, float_sums: bool) -> None:
        self.schedule, self.kernel = schedule, schedule.kernel
        _refuse_mixed_products(schedule)
        self.registers = Registers(schedule, LEVELS)
        self.memory = LevelsMemory(schedule, self.registers, float_sums)
        self.lines = Lines()
        self.first = self._first()
        self.kernels = [self._level(level) for level in range(schedule.levels)]
        self.joint = self._joint()
        self.lines.emit("KERNEL_THAT_FILLS(fill)")
        rows = [kernel.space for kernel in self.launched if kernel.rows]
        self.row_threads = min(MOST_ROW_THREADS, -(-max([1, *rows]) // 32) * 32)

    def text(self, library: str, defined: dict[str, int]) -> str:
        """The whole text for one of the libraries, device.cuh or host.h, with further macros."""
        macros = {
            "BLOCKS": 1,
            "TILES": 1,
            "HEADS": 1,
            "THREADS": LEVELS.threads,
            "ROW_THREADS": self.row_threads,
            "WORDS": self.memory.word_count,
            "EXCHANGE": EXCHANGES.index("block"),
            "EXACT": 1,
            "SHARED": 0,
            **defined,
        }
        lines = [f"/* {self.kernel.name}, {'backwards' if self.kernel.reverse else 'forwards'} in time */"]
        lines += [f"#define {name} {value}" for name, value in macros.items()]
        whole = library_text(library).replace(FUNCTIONS_PLACE, library_text("functions.cuh"))
        if library == "device.cuh":
            whole += library_text("levels.cuh")
        return "\n".join([*lines, whole, *self.lines.text]) + "\n"

    @property
    def launched(self) -> list[LevelKernel]:
        """The kernels by which steps are run."""
        return [kernel for kernel in (self.first, *self.kernels, self.joint) if kernel is not None]

    # ---- kernels

    def _begin(self, name: str) -> None:
        """Open what a kernel does: a function of its threads, the table, and its step within the part."""
        lines = self.lines
        lines.emit(f"struct {name} {{")
        lines.emit("template <class M> METHOD static void run(M &m, const Given &given, long at) {", 1)
        lines.emit("const long steps = (long)given.word[0], batch = (long)given.word[1];", 2)
        lines.emit("const long step = (long)given.word[2] + at;", 2)
        lines.emit(f"const long time = {'steps - 1 - step' if self.kernel.reverse else 'step'};", 2)
        lines.emit("const bool live = true;", 2)
        lines.emit("(void)batch, (void)time, (void)live;", 2)

    def _end(self, kernel: LevelKernel, name: str) -> LevelKernel:
        self.lines.emit("}", 1)
        self.lines.emit("};")
        self.lines.emit(f"KERNEL_OF_{'ROWS' if kernel.rows else 'UNITS'}({kernel.name}, {name})")
        return kernel

    def _first(self) -> LevelKernel | None:
        """States into their registers, and into the vectors that gather them."""
        by_space: dict[int, list[str]] = {}
        for register in self.registers.states:
            to, initial = self.memory.register(register), self._initial(*register)
            by_space.setdefault(register[1], []).append(f"{to} = {initial};")
        for index, vector in enumerate(self.schedule.vectors):
            if vector.state is None:
                continue
            for places in vector.places:
                place = place_text(self.schedule, places, vector.space)
                initial = self._initial(vector.state, vector.space, places)
                stored = TO_STORAGE.get(vector_dtype(vector), "{0}").format(initial)
                by_space.setdefault(vector.space, []).append(f"{self.memory.element(index, place, 'at')} = {stored};")
        if not by_space:
            return None
        self._begin("First")
        for space, texts in by_space.items():
            self.lines.emit(f"m.template each<{space}>([&](long n, int unit) {{", 2)
            for text in texts:
                self.lines.emit(text, 3)
            self.lines.emit("});", 2)
        return self._end(LevelKernel("first", rows=False, space=max(by_space)), "First")

    def _initial(self, buffer: Buffer, space: int, places: Places) -> str:
        """An element of an initial state; a null pointer means zeros."""
        pointer, place = self.memory.pointer(buffer, "state"), place_text(self.schedule, places, space)
        return f"({pointer} ? {from_storage(buffer, f'{pointer}[n * {buffer.count} + {place}]')} : 0)"

    def _level(self, level: int) -> LevelKernel | None:
        spaces = self.registers.spaces_at(level)
        writers = [GlobalWriter(self.registers, self.memory, level, space) for space in spaces]
        writers = [writer for writer in writers if writer.lines]
        if not writers:
            return None
        self._begin(f"Level{level}")
        for writer in writers:
            writer.write(self.lines, 2)
        rows = any(writer.totals for writer in writers)
        return self._end(LevelKernel(f"level_{level}", rows, max(writer.space for writer in writers)), f"Level{level}")

    def _joint(self) -> LevelKernel | None:
        first, last, end = self.kernels[0], self.kernels[-1], len(self.kernels) - 1
        if first is None or last is None or end == 0:
            return None
        waiting = [multiplication.level for multiplication in self.schedule.multiplications]
        waiting += [total.level for total in self.schedule.totals]
        if 0 in waiting:
            return None
        for vector in self.schedule.vectors:  # no thread waits for the others between the two levels
            if vector.by_units and (vector.made == end or (vector.made == 0 and vector.last == end)):
                return None
        lines = self.lines
        lines.emit("struct Joint {")
        lines.emit("template <class M> METHOD static void run(M &m, const Given &given, long at) {", 1)
        lines.emit(f"Level{end}::run(m, given, at - 1);", 2)
        lines.emit("Level0::run(m, given, at);", 2)
        rows, space = first.rows or last.rows, max(first.space, last.space)
        return self._end(LevelKernel("joint", rows, space), "Joint")


def _refuse_mixed_products(schedule: Schedule) -> None:
    """Refuse products of two types of numbers, which torch does not have."""
    for multiplication in schedule.multiplications:
        for result in multiplication.results:
            matrix = schedule.kernel.matrices[result.product.matrix]
            dtype = schedule.kernel.buffers["fixed"][matrix.fixed].dtype
            if dtype != vector_dtype(multiplication.vector):
                left = multiplication.vector.of
                both = f"{vector_dtype(multiplication.vector)} ('{left.name}') with a matrix of {dtype}"
                raise EngineRefusal(f"the matrices do not fit on the chip, and torch has no product of {both}.")
