"""From an inside of a split Loop to the description of its kernel.

A value is either in memory or an expression: views change its index, pointwise operators are written out where they are
read. Into memory go the results of a step, what a product reads, what products and reductions give, and what is costly
and read more than once. Blocks come in the order in which they are needed; loops over the same sizes are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.kernel.description import (
    Apply,
    Block,
    Buffer,
    Expression,
    Kernel,
    Load,
    Matrix,
    Pointwise,
    Product,
    Reduction,
    Store,
)
from leporello.engine.kernel.index import Index, flat
from leporello.engine.kernel.operators import COSTLY, FREE, REDUCTIONS, expression_of, reduction_of
from leporello.engine.kernel.shapes import dims, features, refuse, row_axis, short
from leporello.errors import EngineRefusal
from leporello.loop.classes import Class
from leporello.loop.graph import arguments, results
from leporello.loop.stages import Split, Stage

REALS = (torch.float32, torch.float64)
TYPES = (*REALS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
PRODUCTS = ("mm", "bmm")
MOST_READERS = 3  # a cheap value with more is put into memory


def kernel_of(split: Split, stage: Stage, graph: fx.Graph) -> Kernel:
    """The kernel of an inside; `graph` is its own graph, with composite operators decomposed."""
    return Lowering(split, stage, graph).kernel()


class Lowering:
    """A kernel while it is made.

    home   where a value lies
    """

    def __init__(self, split: Split, stage: Stage, graph: fx.Graph) -> None:
        self.split, self.stage, self.graph = split, stage, graph
        self.buffers: dict[str, list[Buffer]] = {
            place: [] for place in ("state", "next", "read", "write", "row", "fixed", "scratch")
        }
        self.home: dict[fx.Node, Buffer] = {}
        self.fixed: dict[fx.Node, int] = {}
        self.matrices: list[Matrix] = []
        self.blocks: list[Block] = []
        self.expressions: dict[tuple[fx.Node, tuple[Index | None, ...]], Expression] = {}
        self.ranges: dict[str, int] = {}
        self._take_inputs()
        self.targets = self._take_results()
        self.must = self._must_lie_in_memory()

    def _add(self, name: str, place: Any, sizes: Sequence[int], dtype: torch.dtype) -> Buffer:
        if dtype not in TYPES:
            raise EngineRefusal(f"kernels do not compute with numbers of type {str(dtype).removeprefix('torch.')}.")
        own = self.buffers[place]
        buffer = Buffer(name, place, len(own), tuple(sizes), dtype)
        own.append(buffer)
        return buffer

    def _take_inputs(self) -> None:
        places = [node for node in self.graph.nodes if node.op == "placeholder"][1:]
        states = {self.split.loop.delays[name][1]: name for name in self.stage.states}
        order = {read: index for index, read in enumerate(self.stage.reads)}
        for name in self.stage.states:
            node = places[order[self.split.loop.delays[name][1]]]
            self.home[node] = self._add(node.name, "state", features(node), node.meta["val"].dtype)
        for read, node in zip(self.stage.reads, places, strict=True):
            if read in states:
                continue
            kind = self.split.classes[read]
            if not isinstance(node.meta.get("val"), Tensor):
                continue
            if kind is Class.VARYING:
                self.home[node] = self._add(node.name, "read", features(node), node.meta["val"].dtype)
            elif kind is Class.TIMELESS:
                self.home[node] = self._add(node.name, "row", features(node), node.meta["val"].dtype)
            else:
                self.home[node] = self._add(node.name, "fixed", node.meta["val"].shape, node.meta["val"].dtype)

    def _take_results(self) -> dict[fx.Node, list[Buffer]]:
        """For each result the memory it goes to."""
        found: dict[fx.Node, list[Buffer]] = {}
        given = results(self.graph)
        for index, node in enumerate(given):
            place = "next" if index < len(self.stage.states) else "write"
            name = self.stage.states[index] if place == "next" else node.name
            found.setdefault(node, []).append(self._add(name, place, features(node), node.meta["val"].dtype))
        return found

    def _must_lie_in_memory(self) -> set[fx.Node]:
        found = set(self.targets)
        for node in self.graph.nodes:
            if node.op != "call_function" or not isinstance(node.meta["val"], Tensor):
                continue
            name = short(node)
            readers = 1 if name in COSTLY else MOST_READERS
            if name in (*PRODUCTS, *REDUCTIONS, "cat", "stack") or (name not in FREE and len(node.users) > readers):
                found.add(node)
        return found

    def kernel(self) -> Kernel:
        for node in self.graph.nodes:
            if node.op == "call_function" and node in self.must and short(node) in (*PRODUCTS, *REDUCTIONS):
                self.make(node)
        for node in self.targets:
            self.make(node)
        for node, wanted in self.targets.items():
            for buffer in wanted:
                if self.home[node] is not buffer and not self._is_stored(node, buffer):
                    self._pointwise(buffer.sizes, [self._store(buffer, node)])
        return Kernel(
            self.split.loop.name,
            self.split.loop.reverse,
            tuple(self.blocks),
            {place: tuple(own) for place, own in self.buffers.items()},
            tuple(self.matrices),
            self._real(),
        )

    def _real(self) -> torch.dtype:
        """The type of the products, and of most else."""
        products = [block for block in self.blocks if isinstance(block, Product)]
        types = {buffer.dtype for block in products for buffer in (block.left, block.out)}
        types |= {self.buffers["fixed"][matrix.fixed].dtype for matrix in self.matrices}
        if len(types) > 1:
            raise EngineRefusal(f"the step multiplies {' with '.join(sorted(map(str, types)))}.")
        others = [buffer.dtype for place in ("state", "scratch", "read") for buffer in self.buffers[place]]
        found = next((dtype for dtype in [*types, *others] if dtype in REALS), torch.float32)
        if types and found not in types:
            raise EngineRefusal(f"the step multiplies numbers of type {types.pop()}.")
        return found

    def _is_stored(self, node: fx.Node, buffer: Buffer) -> bool:
        return any(
            isinstance(block, Pointwise) and any(store.buffer is buffer for store in block.stores)
            for block in self.blocks
        )

    # ---- values

    def at(self, node: fx.Node, index: tuple[Index | None, ...]) -> Expression:
        """The value of a node at an index; None stands on the row axis."""
        if node in self.home:
            sizes, where = self._memory(node, index)
            return Load(self.home[node], flat(where, sizes))
        if node in self.must:
            self.make(node)
            return self.at(node, index)
        key = (node, index)
        if key not in self.expressions:
            if node.op != "call_function":
                refuse(node)
            self.expressions[key] = expression_of(self, node, index)
        return self.expressions[key]

    def _memory(self, node: fx.Node, index: tuple[Index | None, ...]) -> tuple[list[int], list[Index]]:
        pairs = [(size, place) for size, place in zip(dims(node), index, strict=True) if size is not None]
        return [size for size, _ in pairs], [place or Index() for _, place in pairs]

    def variables(self, sizes: Sequence[int], letter: str = "i") -> list[Index]:
        found = []
        for number, size in enumerate(sizes):
            name = f"{letter}{number}"
            self.ranges[name] = max(size, self.ranges.get(name, 0))
            found.append(Index() if size == 1 else Index.variable(name))
        return found

    def with_rows(self, node: fx.Node, places: Sequence[Index]) -> tuple[Index | None, ...]:
        """An index of a node's value, its row axis put between the others."""
        waiting = iter(places)
        return tuple(None if size is None else next(waiting) for size in dims(node))

    # ---- blocks

    def make(self, node: fx.Node) -> None:
        """Put a value into memory, after all that it needs."""
        if node in self.home:
            return
        name = short(node)
        if name in PRODUCTS:
            self._product(node)
        elif name in REDUCTIONS:
            self._reduction(node)
        elif name in ("cat", "stack"):
            self._joined(node)
        else:
            sizes = features(node)
            places = self.variables(sizes)
            value = expression_of(self, node, self.with_rows(node, places))
            home, *others = self._places(node)
            self._pointwise(sizes, [Store(buffer, flat(places, sizes), value) for buffer in (home, *others)])
            self.home[node] = home

    def _places(self, node: fx.Node) -> list[Buffer]:
        """Where a value goes: to its results' memory, where it is read again too; else to memory of its own."""
        wanted = sorted(self.targets.get(node, ()), key=lambda buffer: buffer.place != "next")
        return wanted or [self._add(node.name, "scratch", features(node), node.meta["val"].dtype)]

    def _store(self, buffer: Buffer, node: fx.Node) -> Store:
        places = self.variables(buffer.sizes)
        return Store(buffer, flat(places, buffer.sizes), self.at(node, self.with_rows(node, places)))

    def _pointwise(self, sizes: Sequence[int], stores: Sequence[Store]) -> None:
        """Loops of their own, or joined to the last block where that has the same."""
        last = self.blocks[-1] if self.blocks else None
        if isinstance(last, Pointwise) and last.sizes == tuple(sizes) and self._may_join(last, stores):
            self.blocks[-1] = Pointwise(last.sizes, (*last.stores, *stores))
        else:
            self.blocks.append(Pointwise(tuple(sizes), tuple(stores)))

    def _may_join(self, last: Pointwise, stores: Sequence[Store]) -> bool:
        """Whether what is read of the last block's results is read at the place where it was put."""
        put = {store.buffer: store.index for store in last.stores}
        waiting: list[Expression] = [store.value for store in stores]
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Load) and value.buffer in put and put[value.buffer] != value.index:
                return False
            if isinstance(value, Apply):
                waiting += value.arguments
            by = getattr(value, "by", None)
            if by is not None:
                waiting.append(by)
                if value.buffer in put:  # type: ignore[union-attr]
                    return False
        return True

    def _reduction(self, node: fx.Node) -> None:
        operator, source, axes = reduction_of(node)
        kept = [axis for axis in range(len(dims(source))) if axis not in axes]
        over = [dims(source)[axis] for axis in axes]
        if None in over:
            raise EngineRefusal(f"the operator {short(node)} sums over rows.")
        inner = self.variables([size or 1 for size in over], "k")
        sizes = [size for axis, size in enumerate(dims(source)) if axis in kept and size is not None]
        outer = iter(self.variables(sizes))
        waiting = iter(inner)
        index = tuple(
            None if dims(source)[axis] is None else next(waiting) if axis in axes else next(outer)
            for axis in range(len(dims(source)))
        )
        value = self.at(source, index)
        home, *others = self._places(node)
        place = flat(self.variables(sizes), sizes)
        self.blocks.append(Reduction(tuple(sizes), tuple(size or 1 for size in over), operator, value, home, place))
        self.home[node] = home
        for buffer in others:
            self._pointwise(buffer.sizes, [self._store(buffer, node)])

    def _joined(self, node: fx.Node) -> None:
        """Parts behind each other along an axis, each put into its place by loops of its own."""
        parts: Sequence[fx.Node] = arguments(node)[0]
        axis = (int(arguments(node)[1]) if len(arguments(node)) > 1 else 0) % len(dims(node))
        stacked = short(node) == "stack"
        if dims(node)[axis] is None:
            raise EngineRefusal(f"the operator {short(node)} joins rows.")
        home, *others = self._places(node)
        begin = 0
        for part in parts:
            own = [size for size in dims(part) if size is not None]
            places = self.variables(own)
            value = self.at(part, self.with_rows(part, places))
            whole: list[Index | None] = list(self.with_rows(part, places))
            if stacked:
                whole.insert(axis, Index(begin))
            else:
                whole[axis] = (whole[axis] or Index()).plus(Index(begin))
            sizes, where = self._memory(node, tuple(whole))
            for buffer in (home, *others):
                self._pointwise(own, [Store(buffer, flat(where, sizes), value)])
            begin += 1 if stacked else dims(part)[axis] or 0
        self.home[node] = home

    # ---- products

    def _product(self, node: fx.Node) -> None:
        left, right = [argument for argument in arguments(node) if isinstance(argument, fx.Node)]
        batched = short(node) == "bmm"
        head = 1 if batched else 0
        if self._is_fixed(right) and row_axis(left) == head:
            factor, matrix, axes = left, right, (0 if batched else None, head, head + 1)
        elif self._is_fixed(left) and row_axis(right) == head + 1:
            factor, matrix, axes = right, left, (0 if batched else None, head + 1, head)
        else:
            raise EngineRefusal(f"the operator {short(node)} multiplies what is no value of a row with a parameter.")
        buffer, offset = self._in_memory(factor)
        shape = [int(size) for size in matrix.meta["val"].shape]
        heads = shape[0] if batched else 1
        out, *others = self._product_places(node)
        self.matrices.append(Matrix(self.home[matrix].slot, heads, shape[axes[1]], shape[axes[2]], axes))
        number = len(self.matrices) - 1
        self.blocks.append(Product(buffer, offset, heads, shape[axes[1]], shape[axes[2]], number, out))
        self.home[node] = out
        for wanted in others:
            self._pointwise(wanted.sizes, [self._store(wanted, node)])

    def _product_places(self, node: fx.Node) -> list[Buffer]:
        """Products write to memory of the step, whose rows are long enough for whole vectors."""
        wanted = sorted(self.targets.get(node, ()), key=lambda buffer: buffer.place != "next")
        if wanted and wanted[0].place == "next":
            return wanted
        return [self._add(node.name, "scratch", features(node), node.meta["val"].dtype), *wanted]

    def _is_fixed(self, node: fx.Node) -> bool:
        return node in self.home and self.home[node].place == "fixed"

    def _in_memory(self, node: fx.Node) -> tuple[Buffer, int]:
        """Where a product can read a factor: rows whose features lie behind each other, from an offset on."""
        sizes = [size for size in dims(node) if size is not None]
        places = self.variables(sizes)
        value = self.at(node, self.with_rows(node, places))
        straight = flat(places, sizes)
        if isinstance(value, Load) and value.buffer.place != "fixed" and value.index.terms == straight.terms:
            return value.buffer, value.index.const
        buffer = self._add(f"{node.name}_factor", "scratch", sizes, node.meta["val"].dtype)
        self._pointwise(sizes, [Store(buffer, straight, value)])
        return buffer, 0
