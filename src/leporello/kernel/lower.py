"""From an inside of a split Loop to the description of its kernel.

A value is either in memory or an expression: views change its index, pointwise operators are written out where they are
read. Into memory go the results of a step, what a product reads, what products and reductions give, and what is costly
and read more than once. Blocks come in the order in which they are needed; loops over the same sizes are joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.kernel.dependencies import alike, join
from leporello.kernel.description import (
    Block,
    Buffer,
    Expression,
    Index,
    Kernel,
    Load,
    Matrix,
    Pointwise,
    Product,
    Reduction,
    Store,
    flat,
)
from leporello.kernel.expressions import COSTLY, FETCHING, FREE, REDUCTIONS, expression_of, reduction_of
from leporello.kernel.fx_nodes import dims, dtype_of, features, refuse, row_axis, short
from leporello.kernel.partial_writes import PIECES, pieces_of
from leporello.loop.graph import arguments, results
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass

REALS = (torch.float32, torch.float64)
TYPES = (*REALS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
PRODUCTS = ("mm", "bmm")
MOST_READERS = 3  # a cheap value with more is put into memory
DEEPEST = 60  # operators written into each other, at most: whoever writes them goes down as deep


def kernel_of(split: Split, stage: Stage, graph: fx.Graph) -> Kernel:
    """The kernel of an inside; `graph` is its own graph, with composite operators decomposed."""
    return Lowering(split, stage, graph).kernel()


class Lowering:
    """A kernel while it is made.

    home     where a value lies
    must     operators whose values are put into memory
    early    those of them that are made before all else
    ranges   how many values each variable of the present loops takes
    """

    def __init__(self, split: Split, stage: Stage, graph: fx.Graph) -> None:
        self.split, self.stage, self.graph = split, stage, graph
        self.buffers: dict[str, list[Buffer]] = {
            place: [] for place in ("state", "next", "read", "write", "row", "fixed", "scratch")
        }
        self.home: dict[fx.Node, Buffer] = {}
        self.matrices: list[Matrix] = []
        self.blocks: list[Block] = []
        self.expressions: dict[Any, Expression] = {}
        self.ranges: dict[str, int] = {}
        self._take_inputs()
        self.targets = self._take_results()
        self.must, self.early = self._must_lie_in_memory()

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
            self.home[node] = self._add(node.name, "state", features(node), dtype_of(node))
        for read, node in zip(self.stage.reads, places, strict=True):
            if read in states:
                continue
            kind = self.split.classes[read]
            if not isinstance(node.meta.get("val"), Tensor):
                continue
            if kind is ValueClass.VARYING:
                self.home[node] = self._add(node.name, "read", features(node), dtype_of(node))
            elif kind is ValueClass.TIMELESS:
                self.home[node] = self._add(node.name, "row", features(node), dtype_of(node))
            else:
                self.home[node] = self._add(node.name, "fixed", node.meta["val"].shape, dtype_of(node))

    def _take_results(self) -> dict[fx.Node, list[Buffer]]:
        """For each result the memory it goes to."""
        found: dict[fx.Node, list[Buffer]] = {}
        given = results(self.graph)
        for index, node in enumerate(given):
            place = "next" if index < len(self.stage.states) else "write"
            name = self.stage.states[index] if place == "next" else node.name
            found.setdefault(node, []).append(self._add(name, place, features(node), dtype_of(node)))
        return found

    def _must_lie_in_memory(self) -> tuple[set[fx.Node], set[fx.Node]]:
        """What is put into memory; and what of it is made in the order of the graph, before all else."""
        found, early = set(self.targets), set()
        depth: dict[fx.Node, int] = {}
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            name = short(node)
            depth[node] = 1 + max((depth.get(source, 0) for source in node.all_input_nodes), default=0)
            if not isinstance(node.meta["val"], Tensor):
                continue
            if name in FETCHING and arguments(node)[0].op == "call_function":
                found.add(arguments(node)[0])
            if name in (*PRODUCTS, *REDUCTIONS) or depth[node] > DEEPEST:
                early.add(node)
                depth[node] = 0
            elif name in PIECES or (name not in FREE and _is_read_often(node)):
                found.add(node)
        return found | early, early

    def kernel(self) -> Kernel:
        for node in self.graph.nodes:
            if node in self.early:
                self.make(node)
        for node in self.targets:
            self.make(node)
        for node, wanted in self.targets.items():
            for buffer in wanted:
                if self.home[node] is not buffer and not self._is_stored(buffer):
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

    def _is_stored(self, buffer: Buffer) -> bool:
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
        key = (node, index, tuple(self.ranges[name] for place in index if place for name, _ in place.terms))
        if key not in self.expressions:
            if node.op != "call_function":
                refuse(node)
            _refuse_type(node)
            self.expressions[key] = expression_of(self, node, index)
        return self.expressions[key]

    def _memory(self, node: fx.Node, index: tuple[Index | None, ...]) -> tuple[list[int], list[Index]]:
        pairs = [(size, place) for size, place in zip(dims(node), index, strict=True) if size is not None]
        return [size for size, _ in pairs], [place or Index() for _, place in pairs]

    def variables(self, sizes: Sequence[int], letter: str = "i") -> list[Index]:
        found = []
        for number, size in enumerate(sizes):
            name = f"{letter}{number}"
            self.ranges[name] = size
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
        _refuse_type(node)
        name, around = short(node), self.ranges
        self.ranges = {}
        if name in PRODUCTS:
            self._product(node)
        elif name in REDUCTIONS:
            self._reduction(node)
        elif name in PIECES:
            self._joined(node)
        else:
            sizes = features(node)
            places = self.variables(sizes)
            value = expression_of(self, node, self.with_rows(node, places))
            home, *others = self._places(node)
            self._pointwise(sizes, [Store(buffer, flat(places, sizes), value) for buffer in (home, *others)])
            self.home[node] = home
        self.ranges = around

    def _places(self, node: fx.Node) -> list[Buffer]:
        """Where a value goes: to its results' memory, where it is read again too; else to memory of its own."""
        wanted = sorted(self.targets.get(node, ()), key=lambda buffer: buffer.place != "next")
        return wanted or [self._add(node.name, "scratch", features(node), dtype_of(node))]

    def _store(self, buffer: Buffer, node: fx.Node) -> Store:
        places = self.variables(buffer.sizes)
        return Store(buffer, flat(places, buffer.sizes), self.at(node, self.with_rows(node, places)))

    def _pointwise(
        self, sizes: Sequence[int], stores: Sequence[Store], *, over: bool = False, early: bool = True
    ) -> None:
        """Loops of their own, or joined to those of an earlier block."""
        new = Pointwise(tuple(sizes), tuple(stores))
        if over:
            self.blocks.append(new)
        else:
            join(self.blocks, new, early=early)

    def _reduction(self, node: fx.Node) -> None:
        operator, source, axes = reduction_of(node)
        whole = dims(source)
        over = tuple(whole[axis] or 1 for axis in axes)
        sizes = tuple(size for axis, size in enumerate(whole) if axis not in axes and size is not None)
        inner, outer = iter(self.variables(over, "k")), iter(self.variables(sizes))
        index = tuple(
            None if size is None else next(inner) if axis in axes else next(outer) for axis, size in enumerate(whole)
        )
        value = self.at(source, index)
        home, *others = self._places(node)
        self.blocks.append(Reduction(sizes, over, operator, value, home, flat(self.variables(sizes), sizes)))
        self.home[node] = home
        for buffer in others:
            self._pointwise(buffer.sizes, [self._store(buffer, node)])

    def _joined(self, node: fx.Node) -> None:
        """Pieces, each put into its place by loops of its own."""
        buffers, pieces = self._places(node), list(pieces_of(self, node))
        early = alike(self.blocks, [piece.value for piece in pieces])  # one that waits would hold the others up
        for piece in pieces:
            sizes, where = self._memory(node, piece.place)
            stores = [Store(buffer, flat(where, sizes), piece.value) for buffer in buffers]
            self._pointwise(piece.sizes, stores, over=piece.over, early=early)
        self.home[node] = buffers[0]

    # ---- products

    def _product(self, node: fx.Node) -> None:
        left, right = [argument for argument in arguments(node) if isinstance(argument, fx.Node)]
        batched = short(node) == "bmm"
        head = 1 if batched else 0
        if self._is_fixed(right) and row_axis(left) == head:
            factor, matrix, inner, outer = left, right, head, head + 1
        elif self._is_fixed(left) and row_axis(right) == head + 1:
            factor, matrix, inner, outer = right, left, head + 1, head
        else:
            refuse(node, "multiplies what is no value of a row with a parameter")
        shape = [int(size) for size in matrix.meta["val"].shape]
        heads = shape[0] if batched else 1
        origin = _same_for_all_heads(matrix)
        axes = (0 if batched else None, inner, outer) if origin is matrix else (None, inner - 1, outer - 1)
        buffer, offset = self._in_memory(factor)
        out, *others = self._product_places(node)
        self.matrices.append(Matrix(self.home[origin].slot, heads, shape[inner], shape[outer], axes))
        number = len(self.matrices) - 1
        self.blocks.append(Product(buffer, offset, heads, shape[inner], shape[outer], number, out))
        self.home[node] = out
        for wanted in others:
            self._pointwise(wanted.sizes, [self._store(wanted, node)])

    def _product_places(self, node: fx.Node) -> list[Buffer]:
        """Products write to memory of the step, whose rows are long enough for whole vectors."""
        wanted = sorted(self.targets.get(node, ()), key=lambda buffer: buffer.place != "next")
        if wanted and wanted[0].place == "next":
            return wanted
        return [self._add(node.name, "scratch", features(node), dtype_of(node)), *wanted]

    def _is_fixed(self, node: fx.Node) -> bool:
        origin = _same_for_all_heads(node)
        return origin in self.home and self.home[origin].place == "fixed"

    def _in_memory(self, node: fx.Node) -> tuple[Buffer, int]:
        """Where a product can read a factor: rows whose features lie behind each other, from an offset on."""
        sizes = [size for size in dims(node) if size is not None]
        places = self.variables(sizes)
        value = self.at(node, self.with_rows(node, places))
        straight = flat(places, sizes)
        if isinstance(value, Load) and value.buffer.place != "fixed" and value.index.terms == straight.terms:
            return value.buffer, value.index.const
        buffer = self._add(f"{node.name}_factor", "scratch", sizes, dtype_of(node))
        self._pointwise(sizes, [Store(buffer, straight, value)])
        return buffer, 0


def _refuse_type(node: fx.Node) -> None:
    if dtype_of(node) not in TYPES:
        kind = str(dtype_of(node)).removeprefix("torch.")
        refuse(node, f"computes with numbers of type {kind}, which kernels do not")


def _is_read_often(node: fx.Node) -> bool:
    """Whether a value would be computed again and again where it is read: by many, or by one that spreads it."""
    costly = short(node) in COSTLY
    return len(node.users) > (1 if costly else MOST_READERS) or (costly and _is_spread(node, _count(node)))


def _is_spread(node: fx.Node, count: int) -> bool:
    """Whether some reader has more values than the one it reads."""
    return any(
        user.op == "call_function"
        and isinstance(user.meta["val"], Tensor)
        and (_count(user) > count or (short(user) in FREE and _is_spread(user, count)))
        for user in node.users
    )


def _count(node: fx.Node) -> int:
    return math.prod(size for size in node.meta["val"].shape if isinstance(size, int))


def _same_for_all_heads(matrix: fx.Node) -> fx.Node:
    """What is spread over heads, where nothing else happens to it."""
    if matrix.op == "call_function" and short(matrix) == "expand":
        source = arguments(matrix)[0]
        if source.op == "call_function" and short(source) == "unsqueeze" and arguments(source)[1] == 0:
            found: fx.Node = arguments(source)[0]
            return found
    return matrix
