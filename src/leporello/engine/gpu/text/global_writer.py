"""`GlobalWriter`: what threads compute at a level that is a kernel of its own, with all values in global memory."""

from __future__ import annotations

from leporello.engine.gpu.division.schedule import Register, Total
from leporello.engine.gpu.text.cuda_expressions import FROM_STORAGE, TO_STORAGE
from leporello.engine.gpu.text.level_writer import OPERATIONS, LevelWriter
from leporello.engine.gpu.text.levels_memory import LevelsMemory, vector_dtype
from leporello.engine.gpu.text.lines import Lines, place_text
from leporello.engine.gpu.text.registers import Registers


class GlobalWriter(LevelWriter):
    """Writes what one thread computes for its row and unit of a space, at one level."""

    def __init__(self, registers: Registers, memory: LevelsMemory, level: int, space: int) -> None:
        super().__init__(registers, memory, level, space)
        self.memory = memory
        self.made = {result.product.out for _, result in memory.products}

        self.compute()

    def write(self, lines: Lines, depth: int) -> None:
        for line in self.parts_of_totals():
            lines.emit(line, depth)
        lines.emit(f"m.template each<{self.space}>([&](long n, int unit) {{", depth)
        lines.emit("(void)n, (void)unit;", depth + 1)
        for line in self.lines:
            lines.emit(line, depth + 1)
        lines.emit("});", depth)
        for total in self.totals:
            to = self.memory.total(total, "m.row()")
            lines.emit(f"m.template total<{OPERATIONS[total.operator]}>(part_{total.number}, {to});", depth)

    def _kept(self, register: Register) -> str:
        return self._product(register) if register[0] in self.made else self.memory.register(register)

    def _keep_product(self, register: Register) -> None:
        """Nothing: the sums stay in memory until the next step."""

    def _keep(self, register: Register, value: str) -> None:
        if register[0] not in self.made:
            super()._keep(register, value)

    def _total(self, total: Total) -> str:
        return f"*{self.memory.total(total)}"

    def _gather(self, index: int, register: Register, place: str, value: str) -> None:
        vector = self.schedule.vectors[index]
        stored = TO_STORAGE.get(vector_dtype(vector), "{0}").format(value)
        self.lines.append(f"{self.memory.element(index, place, 'at + 1')} = {stored};")

    def _element(self, index: int, place: str) -> str:
        dtype = vector_dtype(self.schedule.vectors[index])
        return FROM_STORAGE.get(dtype, "{0}").format(self.memory.element(index, place, "at"))

    def _read(self, element: str) -> str:
        return f"READ({element})"

    def _product(self, register: Register) -> str:
        buffer, space, places = register
        return self.memory.product(buffer, place_text(self.schedule, places, space))
