"""`schedule_of`: from a kernel to its `Schedule`: spaces and parts first, then each block at its level."""

from __future__ import annotations

import functools
import math
from collections import Counter

import torch

from leporello.engine.gpu.division.normal_form import copied_scalars, multiplied_inputs, stored_twice, whole_stores
from leporello.engine.gpu.division.schedule import (
    Evaluator,
    Multiplication,
    Part,
    Places,
    Register,
    Result,
    Schedule,
    Statement,
    Total,
    Vector,
    loads,
    numbers_of,
    uses,
)
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
)
from leporello.kernel.index import Index, loop_variables, row_major
from leporello.kernel.operators import SELECTIONS
from leporello.loop.sizes import Size

MAX_PARTS = 16  # statements that a loop becomes at most; a longer one has a space of its own
GATHERED_REDUCTIONS = frozenset({"sum", "amax", "amin", "prod", "any", "all"})  # of which each block computes a part


def schedule_of(kernel: Kernel) -> Schedule:
    """Divide the blocks of a kernel into levels of statements; refuses what no statement covers."""
    _refuse(kernel)
    kernel = copied_scalars(multiplied_inputs(kernel))
    wanted = stored_twice(kernel)
    while True:
        try:
            return _Scheduler(whole_stores(kernel, wanted)).schedule()
        except _InPieces as pieces:
            if pieces.buffer in wanted:
                raise
            wanted |= {pieces.buffer}


class _InPieces(EngineRefusal):
    """A vector is stored by several loops over different numbers of elements."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(f"the engine gpu cannot gather '{buffer.name}', which is stored in several pieces.")
        self.buffer = buffer


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
        self.product_homes: dict[Buffer, list[tuple[Part, Index]]] = {}  # which unit has which element of a product
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
                        for part in self._parts(numbers_of(block.sizes)):
                            self._statement(Statement(part, store.buffer, store.index, store.value))
        for vector in list(self.vectors.values()):
            if vector.of.place == "scratch" and vector.of in self.product_homes:
                self._copy_product(vector.of)
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
            heads=self._heads(),
        )

    # ---- spaces

    def _main_space(self) -> int:
        """The number of elements of most loops: of several, the largest."""
        counts: Counter[int] = Counter()
        for block in self.kernel.blocks:
            if isinstance(block, Pointwise) and math.prod(numbers_of(block.sizes)) > 1:
                counts[math.prod(numbers_of(block.sizes))] += len(block.stores)
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
        multiplied = {block.left for block in self.kernel.blocks if isinstance(block, Product)}
        stored = {*self.kernel.buffers["next"], *self.kernel.buffers["write"], *multiplied}
        for block in self.kernel.blocks:
            if isinstance(block, Product):
                self.product_homes[block.out] = self._homes_of_product(block)
                for part, index in self.product_homes[block.out]:
                    self._home(block.out, index, part)
            elif isinstance(block, Reduction):
                if not _is_total(block):
                    for part in self._parts(numbers_of(block.sizes)):
                        self._home(block.buffer, block.index, part)
            else:
                for store in block.stores:
                    if (
                        math.prod(numbers_of(block.sizes)) == 1
                        and store.buffer.count == 1
                        and store.buffer not in stored
                    ):
                        self.scalars[store.buffer] = store
                        continue
                    for part in self._parts(numbers_of(block.sizes)):
                        self._home(store.buffer, store.index, part)

    def _homes_of_product(self, block: Product) -> list[tuple[Part, Index]]:
        """Which units have which elements of a product: those that read them, where these divide all; else in order."""
        readers: dict[tuple[int, Places], tuple[Part, Index]] = {}
        count, sizes = int(block.heads * block.outer), (int(block.heads * block.outer),)
        for part, load in self._product_loads.get(block.out, ()):
            readers.setdefault((part.space, self.places(load.index, part)), (part, load.index))
        elements = [place for _, places in readers for place in places]
        if len({space for space, _ in readers}) == 1 and sorted(elements) == list(range(count)):
            return [readers[key] for key in sorted(readers)]
        index = row_major(loop_variables(sizes), sizes)
        return [(part, index) for part in self._parts(sizes)]

    @functools.cached_property
    def _product_loads(self) -> dict[Buffer, list[tuple[Part, Load]]]:
        """Where loops read the results of products; those that are read in inner loops have none."""
        products = {block.out for block in self.kernel.blocks if isinstance(block, Product)}
        found: dict[Buffer, list[tuple[Part, Load]]] = {product: [] for product in products}
        for block in self.kernel.blocks:
            if isinstance(block, Product):
                continue
            of_rows = isinstance(block, Reduction) and _is_total(block)
            sizes, letter = (block.over, "k") if isinstance(block, Reduction) and of_rows else (block.sizes, "i")
            values = [store.value for store in block.stores] if isinstance(block, Pointwise) else [block.value]
            for value in values:
                for part in self._parts(numbers_of(sizes), letter):
                    for load, _ in loads({}, value, part):
                        if load.buffer not in found:
                            continue
                        if isinstance(load, Fetch) or (letter == "i" and uses(load.index, "k")):
                            del found[load.buffer]
                        else:
                            found[load.buffer].append((part, load))
        return found

    def _heads(self) -> int:
        """The heads of all products, if units of different heads exchange nothing; else 1."""
        results = [result for several in self.multiplications.values() for one in several for result in one.results]
        heads = {int(result.product.heads) for result in results}
        spaces = {statement.part.space for statement in self.statements} | {v.space for v in self.vectors.values()}
        if len(heads) != 1 or self.totals or any(vector.by_units for vector in self.vectors.values()):
            return 1
        count = heads.pop()
        if any(space % count for space in spaces):
            return 1

        def alone(places: Places, space: int, begin: int, size: int) -> bool:
            """Whether positions from `begin` on, `size` of each head, are those of units of the same head."""
            of_unit = space // count
            inside = [(unit, place - begin) for unit, place in enumerate(places) if 0 <= place - begin < count * size]
            return all(place // size == unit // of_unit for unit, place in inside)

        for result in results:
            vector, product = self.vectors[result.product.left], result.product
            if not all(alone(places, vector.space, int(product.offset), product.inner) for places in vector.places):
                return 1
            if not all(alone(places, result.space, 0, product.outer) for places in result.places):
                return 1
        return count

    def _home(self, buffer: Buffer, index: Index, part: Part) -> None:
        home = (part.space, self.places(index, part))
        homes = self.homes.setdefault(buffer, [])
        if home not in homes:
            homes.append(home)

    # ---- blocks

    def _product(self, block: Product) -> None:
        vector, level = self._gathered(block.left)
        homes = self.product_homes[block.out]
        space, places = homes[0][0].space, tuple(self.places(index, part) for part, index in homes)
        joined = self.multiplications.setdefault(vector, [])
        same = next((one for one in joined if one.level == level), None)
        if same is None:
            joined.append(same := Multiplication(vector, [], level))
        same.results.append(Result(block, space, places))
        self._read_at(vector, level)
        for part in places:
            self.stored[block.out, space, part] = level
        self.made[block.out] = level
        if block.out.place in ("next", "write"):  # stored by statements of their own
            self._copy_product(block.out)

    def _copy_product(self, buffer: Buffer) -> None:
        """Statements that store the result of a product."""
        for part, index in self.product_homes[buffer]:
            self.statements.append(Statement(part, buffer, index, Load(buffer, index), level=self.made[buffer]))

    def _reduction(self, block: Reduction) -> None:
        if _is_total(block):
            parts = tuple(self._parts(numbers_of(block.over), "k"))
            total = Total(block.buffer, parts, block.operator, block.value, len(self.totals))
            total.level = max(self._level(block.value, part) for part in parts)
            self.totals.append(total)
            self.made[block.buffer] = total.level + 1
            if block.buffer.place in ("next", "write"):
                (part,) = self._parts(())
                copy = Statement(part, block.buffer, Index(), Load(block.buffer, Index()), level=total.level + 1)
                self.statements.append(copy)
            return
        for part in self._parts(numbers_of(block.sizes)):
            over, operator = numbers_of(block.over), block.operator
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
        of = self.next_of.get(buffer, buffer)
        if buffer not in self.vectors:
            homes = self.homes.get(of, [])
            spaces = {space for space, _ in homes}
            if len(spaces) != 1 or sum(len(set(places)) for _, places in homes) != of.count:
                raise _InPieces(of)
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


def _is_total(block: Reduction) -> bool:
    """Whether a reduction gives one number for a row, of which each block can compute a part."""
    return math.prod(numbers_of(block.sizes)) == 1 and block.buffer.count == 1 and block.operator in GATHERED_REDUCTIONS
