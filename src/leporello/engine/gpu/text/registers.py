"""`Registers`: what each thread keeps from one phase of a step to the next, and which loads read it."""

from __future__ import annotations

from collections.abc import Iterator

from leporello.engine.gpu.division.geometry import ROWS, Geometry
from leporello.engine.gpu.division.schedule import Part, Register, Schedule, loads, uses
from leporello.engine.gpu.text.cuda_expressions import computed_type
from leporello.kernel.description import Expression, Fetch, Load


class Registers:
    """The values of units that are read at a later level than they are stored, and states.

    members      of the struct `Thread`, as C++
    names        of registers that a thread keeps
    last_read    the last level at which each register is read
    states       registers of states, with those of their next values
    """

    def __init__(self, schedule: Schedule, geometry: Geometry) -> None:
        self.schedule, self.geometry = schedule, geometry
        self.members: list[str] = []
        self.names: dict[Register, str] = {}
        self.last_read: dict[Register, int] = {}
        self.states: dict[Register, Register] = {}
        self._find_reads()
        for register, level in self.last_read.items():
            stored = schedule.registers.get(register)
            if register in self.states or (stored is not None and stored < level):
                self._add(register)
        for state, register in self.states.items():  # the old value is read after the new one is stored
            if register not in self.names and schedule.registers.get(register, 0) < self.last_read[state]:
                self._add(register)

    def _find_reads(self) -> None:
        for value, part, level, inner in values(self.schedule):
            for load, inside in loads(self.schedule.scalars, value, part):
                register = self.of(load, inside, inner)
                if register is not None:
                    self.last_read[register] = max(level, self.last_read.get(register, 0))
                    if register[0] in self.schedule.next_of:
                        self.states[register] = (self.schedule.next_of[register[0]], *register[1:])

    def _add(self, register: Register) -> None:
        name = self.names[register] = f"r_{len(self.names)}"
        elements = elements_of(register[1], self.geometry)
        self.members.append(f"{computed_type(register[0].dtype)} {name}[{self.geometry.tiles}][{elements}];")

    def of(self, load: Load | Fetch, part: Part, inner: bool) -> Register | None:
        """The register that a load reads; None if it reads something else.

        inner   whether the load is inside loops over k0, k1, ...
        """
        buffer = load.buffer
        if isinstance(load, Fetch) or buffer.place in ("read", "row", "fixed") or (inner and uses(load.index, "k")):
            return None
        if any(total.buffer is buffer for total in self.schedule.totals):
            return None
        places = self.schedule.places(load.index, part)
        return (buffer, part.space, places) if (part.space, places) in self.schedule.homes_of(buffer) else None

    def carried_at(self, level: int, space: int) -> list[Register]:
        """The states of a space whose register takes its next value at the end of a level."""
        return [
            state
            for state, register in self.states.items()
            if state[1] == space and max(self.last_read[state], self.schedule.registers.get(register, 0)) == level
        ]

    def products_at(self, level: int, space: int) -> list[Register]:
        """The results of the products of a level, in the units of a space."""
        return [
            (result.product.out, space, places)
            for multiplication in self.schedule.multiplications
            for result in multiplication.results
            for places in result.places
            if multiplication.level == level and result.space == space
        ]

    def spaces_at(self, level: int) -> list[int]:
        """The spaces in which something is computed or kept at a level."""
        schedule = self.schedule
        found = [one.part.space for one in schedule.statements if one.level == level]
        found += [total.parts[0].space for total in schedule.totals if total.level == level]
        for multiplication in schedule.multiplications:
            if multiplication.level == level:
                for result in multiplication.results:
                    kept = self.products_at(level, result.space)
                    found += [result.space for register in kept if register in self.names]
        found += [state[1] for state in self.states if self.carried_at(level, state[1])]
        return list(dict.fromkeys(found))


def elements_of(space: int, geometry: Geometry) -> int:
    """Elements (row, unit) of a space that a thread has."""
    return -(-ROWS * geometry.own(space) // geometry.threads)


def values(schedule: Schedule) -> Iterator[tuple[Expression, Part, int, bool]]:
    """All expressions of a step, with their part, their level, and whether they are inside loops over k0, k1, ..."""
    for statement in schedule.statements:
        yield statement.value, statement.part, statement.level, bool(statement.operator)
    for total in schedule.totals:
        for part in total.parts:
            yield total.value, part, total.level, False
