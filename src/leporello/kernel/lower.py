"""From an inside of a split Loop to the description of its kernel.

A value is either in memory or an expression: views change its index, pointwise operators are written out where they are
read. Into memory go the results of a step, what a product reads, what products and reductions give, and what is not
streamed and read more than once. Blocks come in the order in which they are needed; loops over the same sizes are
fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.kernel.dependencies import all_depend_on_state_or_none, block_dependencies, fuse
from leporello.kernel.description import (
    Block,
    Buffer,
    Expression,
    Kernel,
    Load,
    Matrix,
    Place,
    Pointwise,
    Product,
    Reduction,
    Store,
    dtype_of_expression,
)
from leporello.kernel.expressions import (
    FETCHES,
    NEVER_MATERIALISED,
    NOT_STREAMED,
    PRODUCTS,
    REDUCTIONS,
    expression_of,
)
from leporello.kernel.index import Index, Variable, loop_variables, row_major
from leporello.kernel.lowering_context import Positions, dims, dtype_of, features, refuse, row_axis, short
from leporello.kernel.matrix_origin import origin_of
from leporello.kernel.operators import SEARCHES, SELECTIONS
from leporello.kernel.partial_writes import PARTIAL_WRITES, partial_writes_of
from leporello.loop.fake_tensors import has_rows, row_axes, size_of
from leporello.loop.graph import arguments, results
from leporello.loop.sizes import AnySize, Size, nominal
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass

FLOAT_DTYPES = frozenset({torch.float32, torch.float64})  # by default; a target may compute with others
INTEGER_DTYPES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
MAX_STREAMED_READERS = 3  # a streamed value with more is materialised
MAX_EXPRESSION_DEPTH = 60  # operators nested in each other: emitters go down as deep
PLACES: tuple[Place, ...] = ("state", "next", "read", "write", "row", "fixed", "scratch", "total")


def kernel_of(
    split: Split,
    stage: Stage,
    graph: fx.Graph,
    floats: frozenset[torch.dtype] = FLOAT_DTYPES,
    stored: frozenset[torch.dtype] = frozenset(),
) -> Kernel:
    """The kernel of an inside; raises an `EngineRefusal` where an operator or a type is not covered.

    split    the split Loop, of which `stage` is the inside
    graph    the stage's graph with composite operators decomposed
    floats   the floating dtypes that the target's kernels compute with; others are refused
    stored   the narrower dtypes in which its matrices may be stored
    """
    return Lowering(split, stage, graph, floats, stored).kernel()


class Lowering:
    """A kernel while it is made; a `LoweringContext` for the rules.

    memory         the buffer of each value that is in memory by now
    targets        for each result of the step the buffers it goes to
    totals         for each sum over rows the buffer it goes to
    materialised   operators whose values are put into memory
    first          those of them that are computed in the order of the graph, before all else
    expressions    by operator, index and ranges, so that an expression that is used twice is one object
    ranges         how many values each variable of the present loops takes
    """

    def __init__(
        self,
        split: Split,
        stage: Stage,
        graph: fx.Graph,
        floats: frozenset[torch.dtype],
        stored: frozenset[torch.dtype] = frozenset(),
    ) -> None:
        self.split, self.stage, self.graph, self.stored = split, stage, graph, stored
        self.floats, self.dtypes = floats, floats | INTEGER_DTYPES
        self.buffers: dict[Place, list[Buffer]] = {place: [] for place in PLACES}
        self.memory: dict[fx.Node, Buffer] = {}
        self.matrices: list[Matrix] = []
        self.blocks: list[Block] = []
        self.expressions: dict[Any, Expression] = {}
        self.ranges: dict[Variable, AnySize] = {}
        self.totals: dict[fx.Node, Buffer] = {}
        self._add_inputs()
        self.targets = self._add_results()
        self.materialised, self.first = self._choose_materialised()

    def kernel(self) -> Kernel:
        for node in self.graph.nodes:
            if node in self.first:
                self._materialise(node)
        for node in self.targets:
            self._materialise(node)
        for node, buffer in self.totals.items():
            self._add_total(node, buffer)
        for node, buffers in self.targets.items():
            for buffer in buffers:
                if self.memory[node] is not buffer and not self._is_stored(buffer):
                    self._add_loops(buffer.sizes, [self._copy_into(buffer, node)])
        return Kernel(
            self.split.loop.name,
            self.split.loop.reverse,
            tuple(self.blocks),
            {place: tuple(buffers) for place, buffers in self.buffers.items()},
            tuple(self.matrices),
            self._dtype(),
            block_dependencies(self.blocks),
        )

    # ---- buffers

    def _add(self, name: str, place: Place, sizes: Sequence[AnySize], dtype: torch.dtype) -> Buffer:
        if dtype not in self.dtypes and not (place == "fixed" and dtype in self.stored):
            raise EngineRefusal(f"kernels do not compute with numbers of type {str(dtype).removeprefix('torch.')}.")
        buffer = Buffer(name, place, len(self.buffers[place]), tuple(sizes), dtype, arithmetic=dtype)
        self.buffers[place].append(buffer)
        return buffer

    def _add_inputs(self) -> None:
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"][1:]
        before = {self.split.loop.delays[name][1]: name for name in self.stage.states}
        order = {read: index for index, read in enumerate(self.stage.reads)}
        for name in self.stage.states:
            node = placeholders[order[self.split.loop.delays[name][1]]]
            self.memory[node] = self._add(node.name, "state", features(node), dtype_of(node))
        for read, node in zip(self.stage.reads, placeholders, strict=True):
            if read in before or not isinstance(node.meta.get("val"), Tensor):
                continue
            kind = self.split.classes[read]
            if kind is ValueClass.VARYING:
                self.memory[node] = self._add(node.name, "read", features(node), dtype_of(node))
            elif kind is ValueClass.TIMELESS:
                self.memory[node] = self._add(node.name, "row", features(node), dtype_of(node))
            else:
                sizes = [size_of(size) for size in node.meta["val"].shape]
                self.memory[node] = self._add(node.name, "fixed", sizes, dtype_of(node))

    def _add_results(self) -> dict[fx.Node, list[Buffer]]:
        targets: dict[fx.Node, list[Buffer]] = {}
        for index, node in enumerate(results(self.graph)):
            if index >= len(self.stage.states) and not has_rows(node.meta["val"]):
                sizes = [size_of(size) for size in node.meta["val"].shape]
                self.totals[node] = self._add(node.name, "total", sizes, dtype_of(node))
                continue
            place: Place = "next" if index < len(self.stage.states) else "write"
            name = self.stage.states[index] if place == "next" else node.name
            targets.setdefault(node, []).append(self._add(name, place, features(node), dtype_of(node)))
        return targets

    def _choose_materialised(self) -> tuple[set[fx.Node], set[fx.Node]]:
        """The operators whose values are put into memory, and those of them that are computed first: see the class."""
        materialised, first = set(self.targets), set()
        depth: dict[fx.Node, int] = {}
        for node in self.graph.nodes:
            if node.op != "call_function" or node in self.totals:
                continue
            name = short(node)
            depth[node] = 1 + max((depth.get(source, 0) for source in node.all_input_nodes), default=0)
            if not isinstance(node.meta["val"], Tensor):
                continue
            if name in FETCHES and arguments(node)[0].op == "call_function":
                materialised.add(arguments(node)[0])
            if name in PRODUCTS or name in REDUCTIONS or depth[node] > MAX_EXPRESSION_DEPTH:
                first.add(node)
                depth[node] = 0
            elif name in PARTIAL_WRITES or (name not in NEVER_MATERIALISED and _is_read_often(node)):
                materialised.add(node)
        return materialised | first, first

    def _dtype(self) -> torch.dtype:
        """The type of the products; without any, the first floating type of states, scratch and sequences, or float32.

        Products in several types, or in one that the target lacks, are refused.
        """
        products = [block for block in self.blocks if isinstance(block, Product)]
        types = {buffer.dtype for block in products for buffer in (block.left, block.out)}
        types |= {self.buffers["fixed"][matrix.fixed].dtype for matrix in self.matrices} - self.stored
        if len(types) > 1:
            raise EngineRefusal(f"the step multiplies {' with '.join(sorted(map(str, types)))}.")
        places: tuple[Place, ...] = ("state", "scratch", "read")
        others = [buffer.dtype for place in places for buffer in self.buffers[place]]
        chosen = next((dtype for dtype in [*types, *others] if dtype in self.floats), torch.float32)
        if types and chosen not in types:
            raise EngineRefusal(f"the step multiplies numbers of type {types.pop()}.")
        return chosen

    def _is_stored(self, buffer: Buffer) -> bool:
        return any(
            isinstance(block, Pointwise) and any(store.buffer is buffer for store in block.stores)
            for block in self.blocks
        )

    def _result_buffers(self, node: fx.Node) -> list[Buffer]:
        """The buffers of the step's results that a value goes to, that of a state first; none for other values."""
        return sorted(self.targets.get(node, ()), key=lambda buffer: buffer.place != "next")

    def _buffers_for(self, node: fx.Node) -> list[Buffer]:
        """The buffers that a value is stored in: those of the step's results, else a new one; the first is read."""
        return self._result_buffers(node) or [self._add(node.name, "scratch", features(node), dtype_of(node))]

    # ---- values

    def at(self, node: fx.Node, index: Positions) -> Expression:
        if node in self.memory:
            sizes, positions = self._features_of(node, index)
            return Load(self.memory[node], row_major(positions, sizes))
        if node in self.materialised:
            self._materialise(node)
            return self.at(node, index)
        key = (node, index, tuple(self.ranges[variable] for place in index if place for variable, _ in place.terms))
        if key not in self.expressions:
            if node.op != "call_function":
                refuse(node)
            _refuse_type(node, self.dtypes)
            self.expressions[key] = expression_of(self, node, index)
        return self.expressions[key]

    def variables(self, sizes: Sequence[AnySize], letter: str = "i") -> list[Index]:
        self.ranges |= {f"{letter}{axis}": size for axis, size in enumerate(sizes)}
        return loop_variables(sizes, letter)

    def with_rows(self, node: fx.Node, indices: Sequence[Index]) -> Positions:
        remaining = iter(indices)
        return tuple(None if size is None else next(remaining) for size in dims(node))

    def _features_of(self, node: fx.Node, index: Positions) -> tuple[list[AnySize], list[Index]]:
        """The sizes of a value's axes, and an index along them, both without the row axis."""
        pairs = [(size, position) for size, position in zip(dims(node), index, strict=True) if size is not None]
        return [size for size, _ in pairs], [position or Index() for _, position in pairs]

    # ---- blocks

    def _materialise(self, node: fx.Node) -> None:
        """Add the blocks that put a value into memory, behind those of what it needs; nothing if it is there."""
        if node in self.memory:
            return
        _refuse_type(node, self.dtypes)
        name, outer_ranges = short(node), self.ranges
        self.ranges = {}
        if name in PRODUCTS:
            self._add_product(node)
        elif name in REDUCTIONS:
            self._add_reduction(node)
        elif name in PARTIAL_WRITES:
            self._add_partial_writes(node)
        else:
            sizes = features(node)
            indices = self.variables(sizes)
            value = expression_of(self, node, self.with_rows(node, indices))
            buffers, contiguous = self._buffers_for(node), row_major(indices, sizes)
            self._add_loops(sizes, [Store(buffer, contiguous, value) for buffer in buffers])
            self.memory[node] = buffers[0]
            if isinstance(value, Load) and value.buffer.place in ("state", "read") and value.index == contiguous:
                self.memory[node] = value.buffer  # a view is read where its source is
        self.ranges = outer_ranges

    def _add_total(self, node: fx.Node, buffer: Buffer) -> None:
        """Add what adds a value of each row to its sum over rows and steps."""
        self.ranges = {}
        source: fx.Node = arguments(node)[0]
        sizes = features(source)
        indices = self.variables(sizes)
        value = self.at(source, self.with_rows(source, indices))
        self._add_loops(sizes, [Store(buffer, row_major(indices, sizes), value)])

    def _copy_into(self, buffer: Buffer, node: fx.Node) -> Store:
        indices = self.variables(buffer.sizes)
        return Store(buffer, row_major(indices, buffer.sizes), self.at(node, self.with_rows(node, indices)))

    def _add_loops(self, sizes: Sequence[AnySize], stores: Sequence[Store], *, anywhere: bool = True) -> None:
        """New loops, fused with those of an earlier block where that is possible."""
        fuse(self.blocks, Pointwise(tuple(sizes), tuple(stores)), anywhere=anywhere)

    def _add_reduction(self, node: fx.Node) -> None:
        if short(node) in SELECTIONS:
            self._add_selection(node)
            return
        operator, source, axes = _reduction_of(node)
        whole = dims(source)
        over = tuple(whole[axis] or 1 for axis in axes)
        sizes = tuple(size for axis, size in enumerate(whole) if axis not in axes and size is not None)
        inner, outer = iter(self.variables(over, "k")), iter(self.variables(sizes))
        index = tuple(
            None if size is None else next(inner) if axis in axes else next(outer) for axis, size in enumerate(whole)
        )
        value = self.at(source, index)
        buffer, *copies = self._buffers_for(node)
        position = row_major(self.variables(sizes), sizes)
        accumulation = dtype_of_expression(value) if operator in SEARCHES else buffer.arithmetic
        self.blocks.append(Reduction(sizes, over, operator, value, buffer, position, accumulation))
        self.memory[node] = buffer
        for copy in copies:
            self._add_loops(copy.sizes, [self._copy_into(copy, node)])

    def _add_selection(self, node: fx.Node) -> None:
        """The positions of the first elements of the last axis, in their order."""
        source: fx.Node = arguments(node)[0]
        sizes, over = features(node), (size_of(source.meta["val"].shape[-1]),)
        if isinstance(over[0], Size):
            refuse(node, "orders an axis of free length")
        indices = [*self.variables(sizes)[:-1], *self.variables(over, "k")]
        value = self.at(source, self.with_rows(source, indices))
        buffer, *copies = self._buffers_for(node)
        position = row_major(self.variables(sizes), sizes)
        dtype = dtype_of_expression(value)
        self.blocks.append(Reduction(tuple(sizes), over, short(node), value, buffer, position, dtype))
        self.memory[node] = buffer
        for copy in copies:
            self._add_loops(copy.sizes, [self._copy_into(copy, node)])

    def _add_partial_writes(self, node: fx.Node) -> None:
        """Loops for each part; those of a part that overwrites another are a block of their own, behind it."""
        buffers, writes = self._buffers_for(node), list(partial_writes_of(self, node))
        # a part that depends on the state, fused into an early block, would hold up products that do not
        anywhere = all_depend_on_state_or_none(self.blocks, [write.value for write in writes])
        for write in writes:
            sizes, positions = self._features_of(node, write.index)
            stores = [Store(buffer, row_major(positions, sizes), write.value) for buffer in buffers]
            if write.overwrites:
                self.blocks.append(Pointwise(write.sizes, tuple(stores)))
            else:
                self._add_loops(write.sizes, stores, anywhere=anywhere)
        self.memory[node] = buffers[0]

    # ---- products

    def _add_product(self, node: fx.Node) -> None:
        left, right = [argument for argument in arguments(node) if isinstance(argument, fx.Node)]
        batched = short(node) == "bmm"
        head = 1 if batched else 0
        if self._is_fixed(right) and row_axis(left) == head:
            factor, matrix, inner, outer = left, right, head, head + 1
        elif self._is_fixed(left) and row_axis(right) == head + 1:
            factor, matrix, inner, outer = right, left, head + 1, head
        else:
            refuse(node, "multiplies what is no value of a row with a parameter")
        shape = [size_of(size) for size in matrix.meta["val"].shape]
        heads = shape[0] if batched else 1
        origin, axes = origin_of(matrix, (0 if batched else None, inner, outer))
        buffer, offset = self._contiguous_factor(factor)
        out, *copies = self._product_buffers(node)
        own_heads = 1 if axes[0] is None else heads
        self.matrices.append(Matrix(self.memory[origin].slot, own_heads, shape[inner], shape[outer], axes))
        number, dtype = len(self.matrices) - 1, out.arithmetic
        self.blocks.append(Product(buffer, offset, heads, shape[inner], shape[outer], number, out, dtype, dtype))
        self.memory[node] = out
        for copy in copies:
            self._add_loops(copy.sizes, [self._copy_into(copy, node)])

    def _product_buffers(self, node: fx.Node) -> list[Buffer]:
        """The buffer that a product writes to, and those that its result is then copied to.

        A product writes to "next" or "scratch" only: memory of the kernel, in which a target may pad rows to vectors.
        """
        buffers = self._result_buffers(node)
        if buffers and buffers[0].place == "next":
            return buffers
        return [self._add(node.name, "scratch", features(node), dtype_of(node)), *buffers]

    def _is_fixed(self, node: fx.Node) -> bool:
        origin, _ = origin_of(node, (0 if node.meta["val"].dim() == 3 else None, -2, -1))
        return origin in self.memory and self.memory[origin].place == "fixed"

    def _contiguous_factor(self, node: fx.Node) -> tuple[Buffer, int]:
        """The buffer and the offset in it from which on a product's factor is contiguous; it is copied if need be."""
        sizes = features(node)
        indices = self.variables(sizes)
        value = self.at(node, self.with_rows(node, indices))
        contiguous = row_major(indices, sizes)
        if isinstance(value, Load) and value.buffer.place != "fixed" and value.index.terms == contiguous.terms:
            return value.buffer, value.index.const
        buffer = self._add(f"{node.name}_factor", "scratch", sizes, dtype_of(node))
        self._add_loops(sizes, [Store(buffer, contiguous, value)])
        return buffer, 0


def _reduction_of(node: fx.Node) -> tuple[str, fx.Node, list[AnySize]]:
    """The operator of a reduction, its argument, and which of the argument's axes it reduces."""
    source: Any = arguments(node)[0]
    count = len(dims(source))
    argument: Any = node.kwargs.get("dim", arguments(node)[1] if len(arguments(node)) > 1 else None)
    if argument is None or argument == []:
        axes = list(range(count))
    else:
        axes = sorted(int(axis) % count for axis in (argument if isinstance(argument, (list, tuple)) else [argument]))
    if not axes:
        refuse(node, "over no axis is not covered by kernels")
    if any(dims(source)[axis] is None for axis in axes):
        refuse(node, "gathers rows")
    return short(node), source, axes


def _refuse_type(node: fx.Node, dtypes: frozenset[torch.dtype]) -> None:
    if dtype_of(node) not in dtypes:
        kind = str(dtype_of(node)).removeprefix("torch.")
        refuse(node, f"computes with numbers of type {kind}, which kernels do not")


def _is_read_often(node: fx.Node) -> bool:
    """Whether a value, written out at its readers, would be computed too often: many read it, or one repeats it."""
    streamed = short(node) not in NOT_STREAMED
    too_many = len(node.users) > (MAX_STREAMED_READERS if streamed else 1)
    return too_many or (not streamed and _is_repeated(node, _count(node)))


def _is_repeated(node: fx.Node, count: int) -> bool:
    """Whether some reader, directly or through views, has more elements in a row than `count`, those of the value."""
    return any(
        user.op == "call_function"
        and isinstance(user.meta["val"], Tensor)
        and (_count(user) > count or (short(user) in NEVER_MATERIALISED and _is_repeated(user, count)))
        for user in node.users
    )


def _count(node: fx.Node) -> int:
    axes, value = row_axes(node.meta["val"]), node.meta["val"]
    return math.prod(nominal(size_of(size)) for axis, size in enumerate(value.shape) if axis not in axes)
