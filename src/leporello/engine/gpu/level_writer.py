"""`LevelWriter`: what the threads of one space compute at one level, as lines of C++."""

from __future__ import annotations

from leporello.engine.gpu.cuda_expressions import STORAGE, TO_STORAGE, Body, computed_type, index_text
from leporello.engine.gpu.geometry import padded_own
from leporello.engine.gpu.inputs import Inputs, from_storage
from leporello.engine.gpu.lines import Lines, variables_of
from leporello.engine.gpu.memory import Memory
from leporello.engine.gpu.registers import Registers
from leporello.engine.gpu.schedule import Part, Places, Register, Statement, Total, scalar_part, uses
from leporello.errors import EngineRefusal
from leporello.kernel.description import Buffer, Fetch, Load

OPERATIONS = {"sum": "SUM", "amax": "AMAX", "amin": "AMIN", "prod": "PROD", "any": "ANY", "all": "ALL"}


class LevelWriter:
    """Writes the statements and the parts of totals of one level and space.

    stored    names of values that this level has stored by now, by register
    scalars   names of numbers of the row, which each unit computes for itself
    """

    def __init__(self, registers: Registers, inputs: Inputs, memory: Memory, level: int, space: int) -> None:
        self.registers, self.inputs, self.memory = registers, inputs, memory
        self.schedule, self.geometry = registers.schedule, registers.geometry
        self.level, self.space = level, space
        self.stored: dict[Register, str] = {}
        self.scalars: dict[Buffer, str] = {}
        self.lines: list[str] = []
        self.count = [0]
        self.bodies: dict[Part, Body] = {}
        self._scalar_bodies: list[Body] = []  # their expressions keep their ids

    def write(self, lines: Lines, statements: list[Statement], totals: list[Total], depth: int) -> None:
        for statement in statements:
            self._statement(statement)
        for register in self.registers.products_at(self.level, self.space):
            if register in self.registers.names:
                self.lines.append(f"{self._kept(register)} = {self._register(register)};")
        before, after = [], []
        for total in totals:
            name, operation = f"part_{total.number}", OPERATIONS[total.operator]
            before.append(f"float {name} = neutral({operation});")
            for part in total.parts:
                value = self._body(part).value(total.value)
                self._take(part)
                self.lines.append(f"{name} = joined({operation}, {name}, {value});")
            after.append(f"((float *)(b.shared + {self.memory.reduced[total.number]}))[e] = {name};")
        for state in self.registers.carried_at(self.level, self.space):
            register = self.registers.states[state]
            self.lines.append(f"{self._kept(state)} = {self.stored.get(register) or self._kept(register)};")
        lines.space_loop(self.geometry, self.space, self.lines, depth, before=before, after=after)

    def _kept(self, register: Register) -> str:
        """A register that the thread keeps."""
        return f"t.{self.registers.names[register]}[tile][j]"

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
            self.lines.append(f"{self._kept(register)} = {name};")
        place = index_text(statement.index, variables_of(part))
        converted = TO_STORAGE.get(buffer.dtype, f"({STORAGE[buffer.dtype]}){{0}}").format(name)
        if buffer.place == "write":
            self.lines.append(f"if (live) {self._written(buffer, register[2], place)} = {converted};")
        if buffer.place == "next":
            to = f"{self.memory.pointer(buffer)}[n * {buffer.count} + {place}]"
            self.lines.append(f"if (live && step + 1 == steps) {to} = {converted};")
        for index, vector in enumerate(self.schedule.vectors):
            if vector.of is buffer:
                scatter = self.memory.scatters.get(index)
                stage = f"V{index}::stage" if scatter is None else f"w{scatter}.stage"
                slot = "step + 1" if vector.state is not None else "step"
                at = vector.places.index(register[2]) * padded_own(vector, self.geometry)
                self.lines.append(f"{stage}(b, tile, {slot}, row, {at} + own, {name});")

    def _written(self, buffer: Buffer, places: Places, place: str) -> str:
        """The element of an output sequence that a unit writes."""
        cursor = self.inputs.at_cursor(buffer, self.space, places)
        return cursor or f"{self.memory.pointer(buffer)}[(time * batch + n) * {buffer.count} + {place}]"

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
            return self.memory.total(total)
        place = offset or index_text(load.index, body.variables)
        if buffer.place in ("read", "row", "fixed"):
            return self._input(load, part, place, inner)
        register = self.registers.of(load, part, inner)
        if register is not None:
            return self._register(register)
        vector = self.schedule.vectors.index(self.schedule.vector_of(buffer))
        return f"get_{vector}(b, tile, step, row, {place})"

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
        buffer, inputs = load.buffer, self.inputs
        if isinstance(load, Load) and not (inner and uses(load.index, "k")):
            key = (buffer, part.space, self.schedule.places(load.index, part))
            if key in inputs.ringed:
                stage = f"((int)step & {inputs.ring_steps - 1}) * TILES + tile"
                where = f"{self.memory.ring_begin} + ({stage}) * {inputs.stage_bytes} + {inputs.ringed[key]}"
                return from_storage(buffer, f"((const {STORAGE[buffer.dtype]} *)(b.shared + {where}))[e]")
            if key in inputs.fetched:
                return from_storage(buffer, f"t.{inputs.fetched[key]}[tile][j]")
            if key in inputs.held:
                return f"t.{inputs.held[key]}[{'tile' if buffer.place == 'row' else '0'}][j]"
        rows = {"read": f"(time * batch + n) * {buffer.count} + ", "row": f"n * {buffer.count} + "}
        loaded = from_storage(buffer, f"{self.memory.pointer(buffer)}[{rows.get(buffer.place, '')}{place}]")
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

    def _product(self, register: Register) -> str:
        """A product's result for a unit: the sum over the warps, or blocks, that share it."""
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
