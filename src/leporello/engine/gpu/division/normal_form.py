"""The form of a kernel that can be divided among threads: values are stored whole and once, and products are of values.

**Whole stores.** Loops over different numbers of elements are divided among threads in different ways. Where two of
them store in one buffer, an element would have two owners, each with a value of its own. So every store becomes a loop
over the whole buffer, which keeps what is not its part, and each time a buffer of its own: a value is stored once.

    for i0 < 5: a[i0] = 0                for i0 < 5: a.0[i0] = 0
    for i0 < 2: a[2 * i0 + 1] = b[i0]    for i0 < 5: a[i0] = where(i0 == 2 * k + 1, b[k], a.0[i0]), k = (i0 + 3) / 2 % 2

**Multiplied inputs.** A product inside the loop is of a value that the step makes, which blocks of threads then gather.
An input that a product reads is copied into one.

**Scalars.** What is one number for a row is computed by every unit that reads it, from totals that all units have.
Where it is an output too, it is stored by a copy that nothing reads.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from leporello.engine.gpu.division.schedule import Evaluator, Part, Places, numbers_of
from leporello.errors import EngineRefusal
from leporello.kernel.dependencies import block_dependencies
from leporello.kernel.description import (
    Along,
    Apply,
    Block,
    Buffer,
    Expression,
    Fetch,
    Kernel,
    Load,
    Pointwise,
    Position,
    Product,
    Reduction,
    Store,
)
from leporello.kernel.index import Index, Quotient, Remainder, loop_variables, row_major
from leporello.loop.sizes import AnySize

Indices = dict[str, Index]  # what stands for each loop variable


def stored_twice(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers of which a step stores some element more than once."""
    places, parts = Evaluator(), dict[Buffer, list[Places]]()
    for block in kernel.blocks:
        for buffer, index, sizes in stores_of(block):
            part = Part(math.prod(numbers_of(sizes)), 0, numbers_of(sizes))
            parts.setdefault(buffer, []).append(places(index, part))
    return frozenset(
        buffer
        for buffer, stores in parts.items()
        if len(stores) > 1 and sum(map(len, stores)) > len(set(itertools.chain(*stores)))
    )


def whole_stores(kernel: Kernel, wanted: frozenset[Buffer]) -> Kernel:
    """The kernel with some buffers stored whole, each by a single block."""
    if not wanted:
        return kernel
    scratch = list(kernel.buffers["scratch"])
    return _with_blocks(kernel, list(_Rewriter(kernel, wanted, scratch).blocks()), scratch)


def multiplied_inputs(kernel: Kernel) -> Kernel:
    """The kernel with copies of the inputs that products read."""
    scratch, copies, blocks = list(kernel.buffers["scratch"]), dict[Buffer, Buffer](), list[Block]()
    for block in kernel.blocks:
        if isinstance(block, Product) and block.left.place in ("read", "row", "fixed"):
            left = block.left
            if left not in copies:
                copies[left] = copy = replace(left, name=f"{left.name}.copy", place="scratch", slot=len(scratch))
                scratch.append(copy)
                index = row_major(loop_variables(left.sizes), left.sizes)
                blocks.append(Pointwise(left.sizes, (Store(copy, index, Load(left, index)),)))
            block = replace(block, left=copies[left])
        blocks.append(block)
    return _with_blocks(kernel, blocks, scratch)


def copied_scalars(kernel: Kernel) -> Kernel:
    """The kernel with outputs of one number for a row as copies of scratch values."""
    multiplied = {block.left for block in kernel.blocks if isinstance(block, Product)}
    times = Counter(buffer for block in kernel.blocks for buffer, _, _ in stores_of(block))
    scratch = list(kernel.buffers["scratch"])
    rewriter = _Rewriter(kernel, frozenset(), scratch)
    for block in kernel.blocks:
        if isinstance(block, Pointwise) and math.prod(numbers_of(block.sizes)) == 1:
            for buffer, _, _ in stores_of(block):
                alone = buffer.count == 1 and times[buffer] == 1 and buffer not in multiplied
                if buffer.place == "write" and alone:
                    rewriter.keep(buffer)
    copies = [Store(buffer, Index(), Load(value, Index())) for buffer, value in rewriter.holder.items()]
    blocks = [_stored_in(block, rewriter.holder) for block in rewriter.blocks()]
    return _with_blocks(kernel, blocks + [Pointwise((), (copy,)) for copy in copies], scratch) if copies else kernel


def _stored_in(block: Block, holders: dict[Buffer, Buffer]) -> Block:
    """A block that stores in other buffers."""
    if not isinstance(block, Pointwise):
        return block
    return replace(block, stores=tuple(replace(s, buffer=holders.get(s.buffer, s.buffer)) for s in block.stores))


def _with_blocks(kernel: Kernel, blocks: Sequence[Block], scratch: Sequence[Buffer]) -> Kernel:
    buffers = {**kernel.buffers, "scratch": tuple(scratch)}
    return replace(kernel, blocks=tuple(blocks), buffers=buffers, dependencies=block_dependencies(blocks))


def stores_of(block: Block) -> Iterator[tuple[Buffer, Index, Sequence[AnySize]]]:
    """The buffers a block stores in, with the index and the sizes of the loops."""
    if isinstance(block, Pointwise):
        for store in block.stores:
            yield store.buffer, store.index, block.sizes
    elif isinstance(block, Reduction):
        yield block.buffer, block.index, block.sizes
    else:
        sizes = (block.heads * block.outer,)  # as one loop over its result
        yield block.out, row_major(loop_variables(sizes), sizes), sizes


class _Rewriter:
    """The blocks of a kernel while they are written anew.

    scratch   of the new kernel
    left      how many stores in a buffer are still to come
    holder    the buffer that holds a value by now, where it is not its own
    """

    def __init__(self, kernel: Kernel, wanted: frozenset[Buffer], scratch: list[Buffer]) -> None:
        self.kernel, self.wanted, self.scratch = kernel, wanted, scratch
        stores = [buffer for block in kernel.blocks for buffer, _, _ in stores_of(block)]
        self.left = {buffer: stores.count(buffer) for buffer in wanted}
        self.holder: dict[Buffer, Buffer] = {}

    def blocks(self) -> Iterator[Block]:
        for block in self.kernel.blocks:
            if isinstance(block, Product):
                left = self.holder.get(block.left, block.left)
                yield replace(block, left=left, out=self._stored(block.out) if block.out in self.wanted else block.out)
            elif isinstance(block, Reduction):
                yield from self._reduction(block)
            else:
                yield from self._pointwise(block)

    def _pointwise(self, block: Pointwise) -> Iterator[Block]:
        """The stores of a block in order: those that stay, and blocks of their own for those made whole."""
        kept: list[Store] = []
        for store in block.stores:
            if store.buffer not in self.wanted:
                kept.append(replace(store, value=self._read(store.value, {})))
                continue
            if kept:
                yield Pointwise(block.sizes, tuple(kept))
                kept = []
            yield self._whole(store, numbers_of(block.sizes))
        if kept:
            yield Pointwise(block.sizes, tuple(kept))

    def _reduction(self, block: Reduction) -> Iterator[Block]:
        block = replace(block, value=self._read(block.value, {}))
        if block.buffer not in self.wanted:
            yield block
            return
        sizes = numbers_of(block.sizes)
        reduced = self._new(block.buffer, sizes)
        element = row_major(loop_variables(sizes), sizes)
        yield replace(block, buffer=reduced, index=element)
        yield self._whole(Store(block.buffer, block.index, Load(reduced, element)), sizes)

    def _new(self, like: Buffer, sizes: tuple[int, ...]) -> Buffer:
        """A scratch buffer for a value of this one."""
        slot = len(self.scratch)
        buffer = Buffer(f"{like.name}.{slot}", "scratch", slot, sizes, like.dtype, like.arithmetic)
        self.scratch.append(buffer)
        return buffer

    def keep(self, buffer: Buffer) -> None:
        """Let a scratch buffer hold the value of this one from now on."""
        self.holder[buffer] = self._new(buffer, numbers_of(buffer.sizes))

    def _stored(self, buffer: Buffer) -> Buffer:
        """The buffer that takes the next store in a buffer: the last one is its own."""
        self.left[buffer] -= 1
        self.holder[buffer] = buffer if self.left[buffer] == 0 else self._new(buffer, (int(buffer.count),))
        return self.holder[buffer]

    def _whole(self, store: Store, sizes: tuple[int, ...]) -> Pointwise:
        """The block that stores a part of a buffer and keeps the rest."""
        buffer, count = store.buffer, int(store.buffer.count)
        if math.prod(sizes) == count and store.index == row_major(loop_variables(sizes), sizes):
            value, index = self._read(store.value, {}), store.index
        else:
            index = row_major(loop_variables((count,)), (count,))
            inside = _inverse(store.index, sizes, index)
            value = self._read(store.value, inside)
            before = self.holder.get(buffer)
            if before is not None and math.prod(sizes) < count:
                here = Position(index, torch.int64), Position(_put(store.index, inside), torch.int64)
                value = Apply("where", (Apply("eq", here, torch.bool), value, Load(before, index)), buffer.arithmetic)
            sizes = (count,)
        return Pointwise(sizes, (Store(self._stored(buffer), index, value),))

    def _read(self, value: Expression, inside: Indices) -> Expression:
        """An expression with other indices, that reads the buffers which hold the values by now."""
        done: dict[int, Expression] = {}

        def read(one: Expression) -> Expression:
            if id(one) not in done:
                done[id(one)] = new(one)
            return done[id(one)]

        def new(one: Expression) -> Expression:
            if isinstance(one, Position):
                return replace(one, index=_put(one.index, inside))
            if isinstance(one, Load):
                return Load(self.holder.get(one.buffer, one.buffer), _put(one.index, inside))
            if isinstance(one, Fetch):
                by = tuple(Along(read(along.number), along.size, along.stride) for along in one.by)
                return Fetch(self.holder.get(one.buffer, one.buffer), _put(one.index, inside), by)
            if isinstance(one, Apply):
                return replace(one, arguments=tuple(map(read, one.arguments)))
            return one

        return read(value)


def _inverse(index: Index, sizes: tuple[int, ...], position: Index) -> Indices:
    """The loop variables from the position that an index gives, each in its range for other positions too."""
    terms = sorted(index.terms, key=lambda term: -int(term[1]))
    if any(not isinstance(variable, str) or int(factor) <= 0 for variable, factor in terms):
        raise EngineRefusal(f"the engine gpu cannot store a value in several pieces at [{index}].")
    spans = [(str(variable), int(factor), sizes[int(str(variable)[1:])]) for variable, factor in terms]
    beyond = 0
    for _, factor, size in reversed(spans):
        if factor <= beyond:
            raise EngineRefusal(f"the engine gpu cannot store a value in several pieces at [{index}].")
        beyond += factor * (size - 1)
    inside: Indices = {}
    rest = position
    for number, (variable, factor, size) in enumerate(spans):
        if number == 0:  # whole rounds are added, so that nothing negative is divided
            rounds = -(-int(index.const) // (factor * size)) * factor * size
            rest = position.plus(Index(rounds - int(index.const)))
        quotient = rest if factor == 1 else Index.variable(Quotient(rest, factor))
        inside[variable] = Index.variable(Remainder(quotient, size))
        rest = Index.variable(Remainder(rest, factor))
    return inside


def _put(index: Index, inside: Indices) -> Index:
    """An index with others in place of its loop variables."""
    if not inside:
        return index
    found = Index(index.const)
    for variable, factor in index.terms:
        if isinstance(variable, str):
            one = inside.get(variable, Index.variable(variable))
        else:
            one = Index.variable(replace(variable, index=_put(variable.index, inside)))
        found = found.plus(one.times(factor))
    return found
