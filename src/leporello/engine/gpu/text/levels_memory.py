"""`LevelsMemory`: what the kernels of a step leave for each other in global memory, where each level is a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leporello.engine.gpu.division.schedule import Multiplication, Register, Result, Schedule, Total, Vector
from leporello.engine.gpu.text.cuda_expressions import FROM_STORAGE, STORAGE, computed_type
from leporello.engine.gpu.text.registers import Registers
from leporello.engine.gpu.text.words import Words
from leporello.kernel.description import Buffer

ALIGNMENT = 256  # bytes
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
SIZES = {"float": 4, "uint8_t": 1, "int8_t": 1, "int16_t": 2, "int32_t": 4, "int64_t": 8}  # of computed types


@dataclass(frozen=True)
class Area:
    """A part of the scratch memory.

    key         of its address among the words
    row_bytes   for one row of the batch
    slots       2 where one step reads what the step before has left while it leaves its own
    """

    key: tuple[str, int]
    row_bytes: int
    slots: int = 1


class LevelsMemory(Words):
    """Words, with the addresses of scratch memory.

    areas      of registers [row, unit]; of vectors [row, element], in their dtype; of the sums of products
               [head, row, outer]; of totals [row]
    products   of a step, with their multiplications, in the order of their areas
    sums       the dtype in which products leave their sums
    """

    def __init__(self, schedule: Schedule, registers: Registers, float_sums: bool) -> None:
        super().__init__(schedule)
        self.schedule = schedule
        self.float_sums = float_sums
        self.areas: list[Area] = []
        self.products: list[tuple[Multiplication, Result]] = [
            (multiplication, result) for multiplication in schedule.multiplications for result in multiplication.results
        ]
        made = {result.product.out for _, result in self.products}
        self.kept: dict[Register, int] = {}
        for register in registers.names:
            if register[0] not in made:  # sums of products lie in memory already
                number = self.kept[register] = len(self.kept)
                self._add("register", number, register[1] * SIZES[computed_type(register[0].dtype)])
        for index, vector in enumerate(schedule.vectors):
            row_bytes = int(vector.of.count) * vector_dtype(vector).itemsize
            self._add("vector", index, row_bytes, 2 if is_doubled(vector) else 1)
        for index, (multiplication, result) in enumerate(self.products):
            elements = int(result.product.heads) * result.product.outer
            self._add("product", index, elements * self.sums_dtype(multiplication).itemsize)
        for total in schedule.totals:
            self._add("total", total.number, 4)

    def _add(self, kind: str, number: int, row_bytes: int, slots: int = 1) -> None:
        self.areas.append(Area((kind, number), row_bytes, slots))
        self.add_word((kind, number))

    def sums_dtype(self, multiplication: Multiplication) -> torch.dtype:
        """The dtype in which a product leaves its sums."""
        dtype = vector_dtype(multiplication.vector)
        return torch.float32 if self.float_sums else dtype

    def offsets(self, batch: int) -> tuple[list[int], int]:
        """Where the areas begin for a batch, and the bytes of all of them."""
        found, at = [], 0
        for area in self.areas:
            found.append(at)
            at += math.ceil(area.row_bytes * area.slots * batch / ALIGNMENT) * ALIGNMENT
        return found, at

    # ---- texts

    def _area(self, kind: str, number: int, storage: str) -> str:
        return f"(({storage} *)given.word[{self.words[kind, number]}])"

    def register(self, register: Register) -> str:
        """A register of the present row and unit."""
        storage = computed_type(register[0].dtype)
        return f"{self._area('register', self.kept[register], storage)}[n * {register[1]} + unit]"

    def element(self, index: int, place: str, slot: str) -> str:
        """An element of a vector of the present row, as it is stored; `slot` is the step whose value is meant."""
        vector = self.schedule.vectors[index]
        count = int(vector.of.count)
        area = self._area("vector", index, STORAGE[vector_dtype(vector)])
        before = f"(({slot}) & 1) * batch * {count} + " if is_doubled(vector) else ""
        return f"{area}[{before}n * {count} + {place}]"

    def product(self, buffer: Buffer, place: str) -> str:
        """The sum of a product for an element of its result, as float."""
        index, (multiplication, result) = next(
            (index, one) for index, one in enumerate(self.products) if one[1].product.out is buffer
        )
        dtype, outer = self.sums_dtype(multiplication), result.product.outer
        area = self._area("product", index, f"const {STORAGE[dtype]}")
        at = f"n * {outer} + {place}"
        if result.product.heads > 1:
            at = f"({place} / {outer} * batch + n) * {outer} + {place} % {outer}"
        return FROM_STORAGE.get(dtype, "{0}").format(f"READ({area}[{at}])")

    def total(self, total: Total, row: str = "n") -> str:
        """The address of a total."""
        return f"({self._area('total', total.number, 'float')} + {row})"


def vector_dtype(vector: Vector) -> torch.dtype:
    """The dtype of a vector in memory."""
    return vector.of.dtype if vector.of.dtype in SIXTEEN_BITS else torch.float32


def is_doubled(vector: Vector) -> bool:
    """Whether the old value of a state is read when its next one is written already, or while it is."""
    if vector.state is None:
        return False
    return vector.last > vector.made or (vector.by_units and vector.last >= vector.made)
