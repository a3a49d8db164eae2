"""`LevelWriter`: what the threads of one space compute at one level, as lines of C++.

Where values lie that other threads or other levels have made is for subclasses to say: on the chip (`ChipWriter`), or
in global memory (`GlobalWriter`).
"""

from __future__ import annotations

from leporello.engine.gpu.division.schedule import Part, Places, Register, Statement, Total, scalar_part, uses
from leporello.engine.gpu.text.cuda_expressions import STORAGE, TO_STORAGE, Body, computed_type, index_text
from leporello.engine.gpu.text.inputs import from_storage
from leporello.engine.gpu.text.lines import variables_of
from leporello.engine.gpu.text.registers import Registers
from leporello.engine.gpu.text.words import Words
from leporello.errors import EngineRefusal
from leporello.kernel.description import Buffer, Fetch, Load

OPERATIONS = {"sum": "SUM", "amax": "AMAX", "amin": "AMIN", "prod": "PROD", "any": "ANY", "all": "ALL"}


class LevelWriter:
    """Writes the statements and the parts of totals of one level and space.

    stored    names of values that this level has stored by now, by register
    scalars   names of numbers of the row, which each unit computes for itself
    """

    def __init__(self, registers: Registers, words: Words, level: int, space: int) -> None:
        self.registers, self.schedule, self.words = registers, registers.schedule, words
        self.level, self.space = level, space
        of_level = [one for one in self.schedule.statements if one.level == level]
        self.statements = [one for one in of_level if one.part.space == space]
        self.totals = [one for one in self.schedule.totals if one.level == level and one.parts[0].space == space]
        self.stored: dict[Register, str] = {}
        self.scalars: dict[Buffer, str] = {}
        self.lines: list[str] = []
        self.count = [0]
        self.bodies: dict[Part, Body] = {}
        self._scalar_bodies: list[Body] = []  # their expressions keep their ids

    def compute(self) -> None:
        """Write what one unit computes; its parts of totals are added to `part_0`, `part_1`, ..."""
        for statement in self.statements:
            self._statement(statement)
        for register in self.registers.products_at(self.level, self.space):
            if register in self.registers.names:
                self._keep_product(register)
        for total in self.totals:
            name = f"part_{total.number}"
            for part in total.parts:
                value = self._body(part).value(total.value)
                self._take(part)
                self.lines.append(f"{name} = joined({OPERATIONS[total.operator]}, {name}, {value});")
        for state in self.registers.carried_at(self.level, self.space):
            register = self.registers.states[state]
            self._keep(state, self.stored.get(register) or self._kept(register))

    def parts_of_totals(self) -> list[str]:
        """What the parts of totals are before the first unit."""
        return [f"float part_{total.number} = neutral({OPERATIONS[total.operator]});" for total in self.totals]

    # ---- where values lie

    def _kept(self, register: Register) -> str:
        """A register that is kept from level to level."""
        raise NotImplementedError

    def _keep(self, register: Register, value: str) -> None:
        """Store a register that is kept."""
        self.lines.append(f"{self._kept(register)} = {value};")

    def _keep_product(self, register: Register) -> None:
        """Keep the result of a product of this level, which a later one reads."""
        self._keep(register, self._register(register))

    def _product(self, register: Register) -> str:
        """A product's result for a unit, at the level of the product."""
        raise NotImplementedError

    def _total(self, total: Total) -> str:
        """A total of the present row."""
        raise NotImplementedError

    def _gather(self, index: int, register: Register, place: str, value: str) -> None:
        """Give a unit's element of a vector to all units."""
        raise NotImplementedError

    def _element(self, index: int, place: str) -> str:
        """An element of a vector that is there."""
        raise NotImplementedError

    def _read_ahead(self, buffer: Buffer, places: Places) -> str | None:
        """An element of a sequence or an invariant that was loaded before; None where it was not."""
        return None

    def _read(self, element: str) -> str:
        """An element of a sequence or an invariant in memory, which the kernel never writes."""
        return element

    def _written(self, buffer: Buffer, places: Places, place: str) -> str:
        """The element of an output sequence that a unit writes."""
        return f"{self.words.pointer(buffer)}[(time * batch + n) * {buffer.count} + {place}]"

    # ---- expressions

    def _body(self, part: Part) -> Body:
        if part not in self.bodies:

            def load(body: Body, one: Load | Fetch, at: str | None) -> str:
                return self._load(body, one, part, at, inner=False)

            self.bodies[part] = Body(load, variables_of(part), self.count)
        return self.bodies[part]

    def _take(self, part: Part) -> None:
        """Move the lines of a body behind those written by now."""
        self.lines += self.bodies[part].lines
        self.bodies[part].lines = []

    # ---- statements

    def _statement(self, statement: Statement) -> None:
        part, buffer = statement.part, statement.buffer
        register = (buffer, part.space, self.schedule.places(statement.index, part))
        if statement.operator:
            name = self._inner_loops(statement)
        else:
            body = self._body(part)
            name = body.named(body.value(statement.value), computed_type(buffer.dtype))
            self._take(part)
        self.stored[register] = name
        if register in self.registers.names:
            self._keep(register, name)
        place = index_text(statement.index, variables_of(part))
        converted = TO_STORAGE.get(buffer.dtype, f"({STORAGE[buffer.dtype]}){{0}}").format(name)
        if buffer.place == "write":
            self.lines.append(f"if (live) {self._written(buffer, register[2], place)} = {converted};")
        if buffer.place == "next":
            to = f"{self.words.pointer(buffer)}[n * {buffer.count} + {place}]"
            self.lines.append(f"if (live && step + 1 == steps) {to} = {converted};")
        for index, vector in enumerate(self.schedule.vectors):
            if vector.of is buffer:
                self._gather(index, register, place, name)

    def _inner_loops(self, statement: Statement) -> str:
        """Write a reduction that each unit computes by itself; returns the name of its value."""
        part, operator = statement.part, statement.operator
        self.count[0] += 1
        name = f"sum_{self.count[0]}"
        variables = {**variables_of(part), **{f"k{axis}": f"k{axis}" for axis in range(len(statement.over))}}

        def load(body: Body, one: Load | Fetch, at: str | None) -> str:
            return self._load(body, one, part, at, inner=True)

        body = Body(load, variables, self.count)
        value = body.value(statement.value)
        search = operator in ("argmax", "argmin")
        if search:
            self.lines.append(f"float best_{name} = 0; {computed_type(statement.buffer.dtype)} {name} = -1;")
        else:
            self.lines.append(f"float {name} = neutral({OPERATIONS[operator]});")
        sizes = enumerate(statement.over)
        loops = "".join(f"for (int k{axis} = 0; k{axis} < {size}; k{axis}++) " for axis, size in sizes)
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

    def _load(self, body: Body, load: Load | Fetch, part: Part, offset: str | None, *, inner: bool) -> str:
        buffer = load.buffer
        if buffer in self.schedule.scalars:
            return self._scalar(buffer, part)
        total = next((total for total in self.schedule.totals if total.buffer is buffer), None)
        if total is not None:
            return self._total(total)
        place = offset or index_text(load.index, body.variables)
        if buffer.place in ("read", "row", "fixed"):
            return self._input(load, part, place, inner)
        register = self.registers.of(load, part, inner)
        if register is not None:
            return self._register(register)
        vector = self.schedule.vectors.index(self.schedule.vector_of(buffer))
        return self._element(vector, place)

    def _scalar(self, buffer: Buffer, part: Part) -> str:
        if buffer not in self.scalars:
            inside = scalar_part(part)

            def load(body: Body, one: Load | Fetch, at: str | None) -> str:
                return self._load(body, one, inside, at, inner=False)

            body = Body(load, variables_of(inside), self.count)
            value = body.value(self.schedule.scalars[buffer].value)
            self.lines += body.lines
            self.scalars[buffer] = value
            self._scalar_bodies.append(body)
        return self.scalars[buffer]

    def _input(self, load: Load | Fetch, part: Part, place: str, inner: bool) -> str:
        """An element of a sequence or of an invariant."""
        buffer = load.buffer
        if isinstance(load, Load) and not (inner and uses(load.index, "k")):
            ahead = self._read_ahead(buffer, self.schedule.places(load.index, part))
            if ahead is not None:
                return ahead
        rows = {"read": f"(time * batch + n) * {buffer.count} + ", "row": f"n * {buffer.count} + "}
        element = f"{self.words.pointer(buffer)}[{rows.get(buffer.place, '')}{place}]"
        loaded = from_storage(buffer, self._read(element))
        return loaded if buffer.place == "fixed" else f"(live ? {loaded} : 0)"

    def _register(self, register: Register) -> str:
        """A value of this unit: stored at this level, kept by the thread, or a sum of a product."""
        if register in self.stored:
            return self.stored[register]
        stored_at = self.schedule.registers.get(register)
        if register in self.registers.names and (stored_at is None or stored_at < self.level):
            return self._kept(register)
        self.count[0] += 1
        name = f"p{self.count[0]}"
        self.lines.append(f"const float {name} = {self._product(register)};")
        self.stored[register] = name
        return name
