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

**Heads.** Where all products have the same heads, and no unit reads what belongs to another head, blocks of different
heads need nothing of each other: each head has a group of blocks of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leporello.kernel.description import (
    Buffer,
    Expression,
    Fetch,
    Kernel,
    Load,
    Product,
    Store,
    operands,
)
from leporello.kernel.index import Index, Quotient
from leporello.loop.sizes import AnySize

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


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a product, in the units of a space.

    places   the positions in the result, of each part
    """

    product: Product
    space: int
    places: tuple[Places, ...]

    @property
    def parts(self) -> int:
        return len(self.places)


@dataclass(eq=False)
class Multiplication:
    """Products of one vector, whose results every block has for its own units."""

    vector: Vector
    results: list[Result]
    level: int = 0

    def rows(self, own: Callable[[int], int]) -> int:
        """The rows of all matrices that a block has, which has `own` of the units of a space."""
        return sum(own(result.space) * result.parts for result in self.results)


@dataclass(eq=False)
class Schedule:
    """See the module. `registers` maps what statements read and store to the level at which it is stored first.

    heads   that need nothing of each other
    """

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
    heads: int = 1

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


def are_regular(places: Sequence[Places], space: int) -> bool:
    """Whether part p of unit u is element p * space + u."""
    return all(p == tuple(range(number * space, (number + 1) * space)) for number, p in enumerate(places))


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


def numbers_of(sizes: Sequence[AnySize]) -> tuple[int, ...]:
    """Sizes of loops, none of which is a free length."""
    return tuple(int(size) for size in sizes)


def uses(index: Index, letter: str) -> bool:
    return any(
        variable.startswith(letter) if isinstance(variable, str) else uses(variable.index, letter)
        for variable, _ in index.terms
    )
