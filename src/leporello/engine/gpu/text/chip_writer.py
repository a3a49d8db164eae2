"""`ChipWriter`: what threads compute at a level of a persistent kernel, with all values on the chip."""

from __future__ import annotations

from leporello.engine.gpu.division.geometry import padded_own
from leporello.engine.gpu.division.schedule import Places, Register, Total
from leporello.engine.gpu.text.cuda_expressions import STORAGE
from leporello.engine.gpu.text.inputs import Inputs, from_storage
from leporello.engine.gpu.text.level_writer import LevelWriter
from leporello.engine.gpu.text.lines import Lines
from leporello.engine.gpu.text.memory import Memory
from leporello.engine.gpu.text.registers import Registers
from leporello.kernel.description import Buffer


class ChipWriter(LevelWriter):
    """Writes the loop over the elements of one level and space that a thread has."""

    def __init__(self, registers: Registers, inputs: Inputs, memory: Memory, level: int, space: int) -> None:
        super().__init__(registers, memory, level, space)
        self.inputs, self.memory, self.geometry = inputs, memory, registers.geometry

    def write(self, lines: Lines, depth: int) -> None:
        self.compute()
        after = [
            f"((float *)(b.shared + {self.memory.reduced[total.number]}))[e] = part_{total.number};"
            for total in self.totals
        ]
        lines.space_loop(self.geometry, self.space, self.lines, depth, before=self.parts_of_totals(), after=after)

    def _kept(self, register: Register) -> str:
        return f"t.{self.registers.names[register]}[tile][j]"

    def _total(self, total: Total) -> str:
        return self.memory.total(total)

    def _gather(self, index: int, register: Register, place: str, value: str) -> None:
        vector, scatter = self.schedule.vectors[index], self.memory.scatters.get(index)
        stage = f"V{index}::stage" if scatter is None else f"w{scatter}.stage"
        slot = "step + 1" if vector.state is not None else "step"
        at = vector.places.index(register[2]) * padded_own(vector, self.geometry)
        self.lines.append(f"{stage}(b, tile, {slot}, row, {at} + own, {value});")

    def _element(self, index: int, place: str) -> str:
        return f"get_{index}(b, tile, step, row, {place})"

    def _written(self, buffer: Buffer, places: Places, place: str) -> str:
        return self.inputs.at_cursor(buffer, self.space, places) or super()._written(buffer, places, place)

    def _read_ahead(self, buffer: Buffer, places: Places) -> str | None:
        """From the ring, or a register."""
        key, inputs = (buffer, self.space, places), self.inputs
        if key in inputs.ringed:
            stage = f"((int)step & {inputs.ring_steps - 1}) * TILES + tile"
            where = f"{self.memory.ring_begin} + ({stage}) * {inputs.stage_bytes} + {inputs.ringed[key]}"
            return from_storage(buffer, f"((const {STORAGE[buffer.dtype]} *)(b.shared + {where}))[e]")
        if key in inputs.fetched:
            return from_storage(buffer, f"t.{inputs.fetched[key]}[tile][j]")
        if key in inputs.held:
            return f"t.{inputs.held[key]}[{'tile' if buffer.place == 'row' else '0'}][j]"
        return None

    def _product(self, register: Register) -> str:
        """The sum over the warps, or blocks, that share it."""
        buffer, space, places = register
        own = self.geometry.own(space)
        for index, multiplication in enumerate(self.schedule.multiplications):
            begin = 0
            for result in multiplication.results:
                if result.product.out is buffer:
                    row = begin + result.places.index(places) * own
                    return f"w{index}.sum(b, (int)((step * TILES + tile) & 1), row, {row} + own)"
                begin += self.geometry.own(result.space) * result.parts
        raise AssertionError(f"no product gives {buffer.name}")
