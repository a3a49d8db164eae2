"""`Schedule`: the work of one step of a kernel, divided among blocks of threads and into levels.

**Spaces.** A group of thread blocks takes some rows through all steps together. A space is a number of units that the
blocks divide: block b owns the units from b * own to (b + 1) * own. A loop over as many elements as a space has
units, or a small multiple g of it, is g **statements** for each unit: element e is unit e % size, part e // size.
What a statement stores for a unit and another one reads for the same unit stays in a register of one thread.

**Vectors.** What is read otherwise (the left side of a product, an element of another unit) is *gathered*: every block
sends its units to all blocks, and each then has the whole vector. **Totals** are sums and maxima over all units: each
block sends its part.

**Levels.** A step is a row of levels. A level begins when the vectors it reads have arrived, multiplies them, runs its
statements, and ends with what it sends. Most cells have one level; each product of a value that the step itself has
made costs another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leporello.errors import EngineRefusal
from leporello.kernel.description import (
    Buffer,
    Expression,
    Fetch,
    Kernel,
    Load,
    Pointwise,
    Product,
    Reduction,
    Store,
    operands,
)
from leporello.kernel.index import Index, Quotient, loop_variables, row_major
from leporello.kernel.operators import SELECTIONS
from leporello.loop.sizes import Size

MAX_PARTS = 16  # statements that a loop becomes at most; a longer one has a space of its own
GATHERED_REDUCTIONS = frozenset({"sum", "amax", "amin", "prod", "any", "all"})  # of which each block computes a part

Places = tuple[int, ...]  # the positions in a buffer of all units of a space, in their order
Register = tuple[Buffer, int, Places]  # a value that each unit of a space holds: buffer, size of the space, positions


@dataclass(frozen=True)
class Part:
    """One of the statements that a loop becomes: iteration `number * space + unit` for every unit.

    space   the number of units
    sizes   of the loops, which iterations run through in row-major order
    """

    space: int
    number: int
    sizes: tuple[int, ...]
    letter: str = "i"


@dataclass(eq=False)
class Statement:
    """What one unit stores: the value of an expression, or of a reduction over inner loops.

    over, operator   of the inner loops k0, k1, ..., if there are any
    level            at which it runs
    """

    part: Part
    buffer: Buffer
    index: Index
    value: Expression
    over: tuple[int, ...] = ()
    operator: str = ""
    level: int = 0


@dataclass(eq=False)
class Total:
    """A reduction of all units to one number for each row.

    parts    of the loops it reduces: `value` is computed for each unit and part
    level    at which blocks compute their parts; the total is there one level later
    number   its index among all totals
    """

    buffer: Buffer
    parts: tuple[Part, ...]
    operator: str
    value: Expression
    number: int
    level: int = 0


@dataclass(eq=False)
class Vector:
    """A value that all blocks have as a whole.

    of         the buffer that is gathered; for a state that of its next value
    state      the buffer of the state that it becomes, whose slot of the step before is read; None within a step
    space      of the units that hold it
    places     the positions in the buffer, of each part
    made       the level at which it is stored
    first      the level at which it is read first
    last       the level at which it is read last
    by_units   whether units read elements of it, and not only products
    """

    of: Buffer
    state: Buffer | None
    space: int
    places: list[Places] = field(default_factory=list)
    made: int = 0
    first: int = 0
    last: int = 0
    by_units: bool = False

    @property
    def regular(self) -> bool:
        """Whether part p of unit u is element p * space + u."""
        return all(p == _whole(self.space, number) for number, p in enumerate(self.places))


@dataclass(eq=False)
class Multiplication:
    """Products of one vector, whose results every block has for its own units.

    products   with the space and the parts of their results: element part * space + unit
    """

    vector: Vector
    products: list[tuple[Product, int, int]]
    level: int = 0


@dataclass(eq=False)
class Schedule:
    """See the module. `registers` maps what statements read and store to the level at which it is stored first."""

    kernel: Kernel
    statements: list[Statement]
    totals: list[Total]
    vectors: list[Vector]
    multiplications: list[Multiplication]
    levels: int
    scalars: dict[Buffer, Store]
    registers: dict[Register, int]
    places: Evaluator
    homes: dict[Buffer, list[tuple[int, Places]]]
    next_of: dict[Buffer, Buffer]

    @property
    def independent(self) -> bool:
        """Whether no unit needs what another one has: blocks then exchange nothing."""
        return not self.vectors and not self.totals

    def homes_of(self, buffer: Buffer) -> list[tuple[int, Places]]:
        """The spaces and positions in which units store a buffer; of a state its next value."""
        return self.homes.get(self.next_of.get(buffer, buffer), [])

    def vector_of(self, buffer: Buffer) -> Vector:
        """The vector that holds a scratch or state buffer."""
        return next(v for v in self.vectors if buffer in (v.of if v.state is None else None, v.state))


class Evaluator:
    """The positions that an index means for all units of a part; kept, since the same are asked for many times."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Index, Part], Places] = {}
        self.origin: dict[Places, tuple[Part, Index]] = {}  # of positions: an index that means them

    def __call__(self, index: Index, part: Part) -> Places:
        key = (index, part)
        if key not in self._kept:
            iterations = torch.arange(part.space) + part.number * part.space
            variables, rest = {}, iterations
            for axis in reversed(range(len(part.sizes))):
                variables[f"{part.letter}{axis}"] = rest % part.sizes[axis]
                rest = rest // part.sizes[axis]
            self._kept[key] = tuple(_evaluate(index, variables, part.space).tolist())
            self.origin.setdefault(self._kept[key], key[::-1])
        return self._kept[key]


def _evaluate(index: Index, variables: dict[str, Tensor], units: int) -> Tensor:
    value = torch.full((units,), int(index.const))
    for variable, factor in index.terms:
        if isinstance(variable, str):
            term = variables[variable]
        else:
            dividend = _evaluate(variable.index, variables, units)
            term = dividend // variable.size if isinstance(variable, Quotient) else dividend % variable.size
        value = value + term * factor
    return value


def _whole(space: int, number: int) -> Places:
    return tuple(range(number * space, (number + 1) * space))


def schedule_of(kernel: Kernel) -> Schedule:
    """Divide the blocks of a kernel into levels of statements; refuses what no statement covers."""
    _refuse(kernel)
    return _Scheduler(kernel).schedule()


def _refuse(kernel: Kernel) -> None:
    if kernel.buffers.get("total"):
        raise EngineRefusal("the engine gpu has no kernels that add up values of all rows.")
    for buffers in kernel.buffers.values():
        if any(isinstance(size, Size) for buffer in buffers for size in buffer.sizes):
            raise EngineRefusal("the engine gpu has no kernels for values of free length.")
    for block in kernel.blocks:
        if isinstance(block, Reduction) and block.operator in SELECTIONS:
            raise EngineRefusal(f"the engine gpu has no kernels with {block.operator} elements of a row (topk, sort).")


class _Scheduler:
    """A schedule while it is made.

    stored   the level at which each register is stored
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places = Evaluator()
        self.main = self._main_space()
        self.scalars: dict[Buffer, Store] = {}
        self.statements: list[Statement] = []
        self.totals: list[Total] = []
        self.vectors: dict[Buffer, Vector] = {}
        self.multiplications: dict[Vector, list[Multiplication]] = {}
        self.stored: dict[Register, int] = {}
        self.made: dict[Buffer, int] = {}  # the level at which all of a buffer is stored
        self.homes: dict[Buffer, list[tuple[int, Places]]] = {}  # space and positions of each store
        self.product_parts: dict[Buffer, tuple[Index, list[Part]]] = {}  # of scratch buffers
        self.next_of = dict(zip(kernel.buffers["state"], kernel.buffers["next"], strict=True))

    def schedule(self) -> Schedule:
        self._find_homes()
        for block in self.kernel.blocks:
            if isinstance(block, Product):
                self._product(block)
            elif isinstance(block, Reduction):
                self._reduction(block)
            else:
                for store in block.stores:
                    if store.buffer not in self.scalars:
                        for part in self._parts(_numbers(block.sizes)):
                            self._statement(Statement(part, store.buffer, store.index, store.value))
        for vector in list(self.vectors.values()):
            if vector.of in self.product_parts:
                index, parts = self.product_parts[vector.of]
                for part in parts:
                    copy = Statement(part, vector.of, index, Load(vector.of, index), level=self.made[vector.of])
                    self.statements.append(copy)
        for vector in self.vectors.values():
            vector.made = self.made[vector.of]
        levels = 1 + max(
            [*(s.level for s in self.statements), *(v.last for v in self.vectors.values()), 0],
        )
        return Schedule(
            kernel=self.kernel,
            statements=self.statements,
            totals=self.totals,
            vectors=list(self.vectors.values()),
            multiplications=[one for several in self.multiplications.values() for one in several],
            levels=levels,
            scalars=self.scalars,
            registers=self.stored,
            places=self.places,
            homes=self.homes,
            next_of=self.next_of,
        )

    # ---- spaces

    def _main_space(self) -> int:
        """The number of elements of most loops: of several, the largest."""
        counts: Counter[int] = Counter()
        for block in self.kernel.blocks:
            if isinstance(block, Pointwise) and math.prod(_numbers(block.sizes)) > 1:
                counts[math.prod(_numbers(block.sizes))] += len(block.stores)
        states = {int(buffer.count) for buffer in self.kernel.buffers["state"]}
        best = max(counts, key=lambda count: (count in states, counts[count], count), default=0)
        return best or max(states, default=1)

    def _space(self, count: int) -> tuple[int, int]:
        """The space of a loop over so many elements, and the number of its parts."""
        if count % self.main == 0 and count // self.main <= MAX_PARTS:
            return self.main, count // self.main
        return count, 1

    def _parts(self, sizes: tuple[int, ...], letter: str = "i") -> list[Part]:
        space, count = self._space(math.prod(sizes))
        return [Part(space, number, sizes, letter) for number in range(count)]

    def _find_homes(self) -> None:
        """Which units store which elements of which buffer; scalars of a row are computed wherever they are read."""
        results = {*self.kernel.buffers["next"], *self.kernel.buffers["write"]}
        for block in self.kernel.blocks:
            if isinstance(block, Product):
                count = block.heads * block.outer
                for part in self._parts((int(count),)):
                    self._home(block.out, Index.variable("i0") if count > 1 else Index(), part)
            elif isinstance(block, Reduction):
                if not _is_total(block):
                    for part in self._parts(_numbers(block.sizes)):
                        self._home(block.buffer, block.index, part)
            else:
                for store in block.stores:
                    if (
                        math.prod(_numbers(block.sizes)) == 1
                        and store.buffer.count == 1
                        and store.buffer not in results
                    ):
                        self.scalars[store.buffer] = store
                        continue
                    for part in self._parts(_numbers(block.sizes)):
                        self._home(store.buffer, store.index, part)

    def _home(self, buffer: Buffer, index: Index, part: Part) -> None:
        home = (part.space, self.places(index, part))
        homes = self.homes.setdefault(buffer, [])
        if home not in homes:
            homes.append(home)

    # ---- blocks

    def _product(self, block: Product) -> None:
        vector, level = self._gathered(block.left)
        count = int(block.heads * block.outer)
        space, parts = self._space(count)
        joined = self.multiplications.setdefault(vector, [])
        same = next((one for one in joined if one.level == level), None)
        if same is None:
            joined.append(same := Multiplication(vector, [], level))
        same.products.append((block, space, parts))
        self._read_at(vector, level)
        sizes = (count,)
        for part in self._parts(sizes):
            register = (block.out, space, self.places(row_major(loop_variables(sizes), sizes), part))
            self.stored[register] = level
        self.made[block.out] = level
        index = row_major(loop_variables(sizes), sizes)
        if block.out.place in ("next", "write"):  # stored by statements of their own
            for part in self._parts(sizes):
                self.statements.append(Statement(part, block.out, index, Load(block.out, index), level=level))
        else:
            self.product_parts[block.out] = (index, self._parts(sizes))

    def _reduction(self, block: Reduction) -> None:
        if _is_total(block):
            parts = tuple(self._parts(_numbers(block.over), "k"))
            total = Total(block.buffer, parts, block.operator, block.value, len(self.totals))
            total.level = max(self._level(block.value, part) for part in parts)
            self.totals.append(total)
            self.made[block.buffer] = total.level + 1
            if block.buffer.place in ("next", "write"):
                (part,) = self._parts(())
                copy = Statement(part, block.buffer, Index(), Load(block.buffer, Index()), level=total.level + 1)
                self.statements.append(copy)
            return
        for part in self._parts(_numbers(block.sizes)):
            over, operator = _numbers(block.over), block.operator
            self._statement(Statement(part, block.buffer, block.index, block.value, over, operator))

    def _statement(self, statement: Statement) -> None:
        statement.level = self._level(statement.value, statement.part, inner=bool(statement.operator))
        self.statements.append(statement)
        register = (statement.buffer, statement.part.space, self.places(statement.index, statement.part))
        self.stored[register] = max(statement.level, self.stored.get(register, 0))
        self.made[statement.buffer] = max(statement.level, self.made.get(statement.buffer, 0))

    # ---- levels

    def _level(self, value: Expression, part: Part, *, inner: bool = False) -> int:
        """The level at which an expression can be computed, for the units of a part; vectors it reads are noted.

        inner   whether it is inside loops over k0, k1, ...
        """
        level, vectors = 0, []
        for load, inside in loads(self.scalars, value, part):
            buffer = load.buffer
            if buffer.place in ("read", "row", "fixed"):
                continue
            if any(total.buffer is buffer for total in self.totals):
                level = max(level, self.made[buffer])
            elif isinstance(load, Load) and self.is_register(load, inside, inner):
                level = max(level, self.stored.get((buffer, inside.space, self.places(load.index, inside)), 0))
            else:
                vector, there = self._gathered(buffer)
                vectors.append(vector)
                level = max(level, there)
        for vector in vectors:
            self._read_at(vector, level)
            vector.by_units = True
        return level

    def is_register(self, load: Load | Fetch, part: Part, inner: bool) -> bool:
        """Whether a unit itself has stored what it reads."""
        if isinstance(load, Fetch) or (inner and uses(load.index, "k")):
            return False
        home = (part.space, self.places(load.index, part))
        return home in self.homes.get(self.next_of.get(load.buffer, load.buffer), ())

    def _gathered(self, buffer: Buffer) -> tuple[Vector, int]:
        """The vector that holds a buffer, and the level from which on it is there."""
        if buffer.place in ("read", "row", "fixed"):
            raise EngineRefusal(
                f"the engine gpu has no kernels that multiply an input inside the loop ({buffer.name})."
            )
        of = self.next_of.get(buffer, buffer)
        if buffer not in self.vectors:
            homes = self.homes.get(of, [])
            spaces = {space for space, _ in homes}
            if len(spaces) != 1 or sum(len(set(places)) for _, places in homes) != of.count:
                raise EngineRefusal(f"the engine gpu cannot gather '{buffer.name}', which is stored in several pieces.")
            if not (of.dtype.is_floating_point or of.dtype == torch.bool):
                raise EngineRefusal(f"the engine gpu does not gather whole numbers ('{buffer.name}').")
            state = buffer if buffer.place == "state" else None
            space = spaces.pop()
            vector = Vector(of, state, space, sorted(places for _, places in homes), first=1 << 30)
            self.vectors[buffer] = vector
        vector = self.vectors[buffer]
        return vector, 0 if vector.state is not None else self.made[of] + 1

    def _read_at(self, vector: Vector, level: int) -> None:
        vector.first, vector.last = min(vector.first, level), max(vector.last, level)


def loads(scalars: dict[Buffer, Store], value: Expression, part: Part) -> Iterator[tuple[Load | Fetch, Part]]:
    """The loads of an expression, with the part in which they are made; those of scalars are made by every unit."""
    pending, seen = [value], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        pending += operands(one)
        if isinstance(one, (Load, Fetch)):
            if one.buffer in scalars:
                yield from loads(scalars, scalars[one.buffer].value, scalar_part(part))
            else:
                yield one, part


def scalar_part(part: Part) -> Part:
    """The part in which units compute a number of their row for themselves."""
    return Part(part.space, 0, (), part.letter)


def _is_total(block: Reduction) -> bool:
    """Whether a reduction gives one number for a row, of which each block can compute a part."""
    return math.prod(_numbers(block.sizes)) == 1 and block.buffer.count == 1 and block.operator in GATHERED_REDUCTIONS


def uses(index: Index, letter: str) -> bool:
    return any(
        variable.startswith(letter) if isinstance(variable, str) else uses(variable.index, letter)
        for variable, _ in index.terms
    )


def _numbers(sizes: tuple[int | Size, ...]) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)  # type: ignore[arg-type]
