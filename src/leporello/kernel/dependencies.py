"""What the blocks of a kernel read and write, and what follows from it.

Which blocks need which; which loops can be fused; which values need no memory; which products do not depend on the
state and can run for several steps together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

from leporello.kernel.description import (
    Block,
    Buffer,
    Dependency,
    Expression,
    Fetch,
    Kernel,
    Load,
    Pointwise,
    Product,
    Reduction,
    operands,
)
from leporello.kernel.index import Index, loop_variables, row_major
from leporello.loop.sizes import AnySize

Buffers = frozenset[Buffer]


def _kept(function: Callable[[Block], Buffers]) -> Callable[[Block], Buffers]:
    """A function whose result is kept with the block: a block never changes, and is asked hundreds of times."""
    name = f"_{function.__name__}"

    @functools.wraps(function)
    def of(block: Block) -> Buffers:
        values = block.__dict__
        if name not in values:
            values[name] = function(block)
        buffers: Buffers = values[name]
        return buffers

    return of


@_kept
def written(block: Block) -> Buffers:
    """The buffers a block writes."""
    return frozenset(buffer for buffer, _ in _stores(block))


@_kept
def read(block: Block) -> Buffers:
    """The buffers a block reads; without the matrix of a product."""
    if isinstance(block, Product):
        return frozenset({block.left})
    return frozenset(buffer for buffer, _ in loads(*_values(block)))


@_kept
def touched(block: Block) -> Buffers:
    return read(block) | written(block)


def loads(*values: Expression) -> set[tuple[Buffer, Index | None]]:
    """What expressions read in memory: buffers with the index read, which is None for a computed position."""
    pending = list(values)
    accesses: set[tuple[Buffer, Index | None]] = set()
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, (Load, Fetch)):
                accesses.add((value.buffer, value.index if isinstance(value, Load) else None))
            pending += operands(value)
    return accesses


def loaded(kernel: Kernel) -> set[int]:
    """The slots of fixed buffers that are read element by element, not only multiplied by."""
    return {buffer.slot for block in kernel.blocks for buffer in read(block) if buffer.place == "fixed"}


def _values(block: Pointwise | Reduction) -> list[Expression]:
    return [store.value for store in block.stores] if isinstance(block, Pointwise) else [block.value]


def _stores(block: Block) -> list[tuple[Buffer, Index]]:
    """The buffers a block writes, and the index in its loops; a product counts as one loop over its whole result."""
    if isinstance(block, Pointwise):
        return [(store.buffer, store.index) for store in block.stores]
    if isinstance(block, Reduction):
        return [(block.buffer, block.index)]
    return [(block.out, loop_variables(_sizes(block))[0])]


def _sizes(block: Block) -> tuple[AnySize, ...]:
    return (block.heads * block.outer,) if isinstance(block, Product) else block.sizes


# ---- dependencies between blocks


def block_dependencies(blocks: Sequence[Block]) -> tuple[tuple[Dependency, ...], ...]:
    """For each block its dependencies: on which earlier blocks, through which buffers, and how it reads them."""
    return tuple(
        tuple(need for number in range(later) for need in _dependencies(number, blocks[number], block))
        for later, block in enumerate(blocks)
    )


def _dependencies(number: int, earlier: Block, later: Block) -> list[Dependency]:
    """The dependencies of one block on an earlier one, sorted by their buffers' place and slot.

    number   the index of the earlier block
    """
    reads = {buffer: _read_dependency(number, earlier, later, buffer) for buffer in written(earlier) & read(later)}
    order = {buffer: Dependency(number, buffer, "order") for buffer in touched(earlier) & written(later)}
    return sorted({**order, **reads}.values(), key=lambda need: (need.buffer.place, need.buffer.slot))


def _read_dependency(number: int, earlier: Block, later: Block, buffer: Buffer) -> Dependency:
    """How a block reads what an earlier one has stored in a buffer."""
    if isinstance(later, Product):
        return Dependency(number, buffer, "row")
    stored = {_element_map(_sizes(earlier), index) for target, index in _stores(earlier) if target == buffer}
    indices = [index for source, index in loads(*_values(later)) if source == buffer]
    affine = [index for index in indices if index is not None]
    if len(stored) == 1 and len(affine) == len(indices):
        if all(_element_map(later.sizes, index) in stored for index in affine):
            return Dependency(number, buffer, "element")
        element = row_major(loop_variables(later.sizes), later.sizes)
        if all(index.terms == element.terms for index in affine) and next(iter(stored))[1] is None:
            return Dependency(number, buffer, "row", tuple(sorted({index.const for index in affine})))
    return Dependency(number, buffer, "row")


def _element_map(sizes: Sequence[AnySize], index: Index) -> tuple[tuple[AnySize, ...], Index | None]:
    """The map from elements of a block's loops to positions in memory, in a form that can be compared.

    Two accesses with equal maps touch the same position in the same element. The map that counts positions as it counts
    elements is (number of elements, None), however the loops are nested.
    """
    if index == row_major(loop_variables(sizes), sizes):
        return (math.prod(sizes),), None  # elements in the order of memory, however the loops are nested
    return tuple(sizes), index


# ---- dependence on the state


def depends_on_state(buffers: Iterable[Buffer], state_dependent: set[Buffer]) -> bool:
    """Whether some of these buffers hold a state, or a value that depends on one.

    state_dependent   what `state_dependent_buffers` gives
    """
    return any(buffer in state_dependent or buffer.place in ("state", "next") for buffer in buffers)


def state_dependent_buffers(blocks: Sequence[Block]) -> set[Buffer]:
    """All buffers that are written by blocks with some part that depends on a state, since a block runs as a whole."""
    buffers: set[Buffer] = set()
    while (
        more := {b for block in blocks if depends_on_state(touched(block), buffers) for b in written(block)} - buffers
    ):
        buffers |= more
    return buffers


def blocks_ahead(kernel: Kernel) -> list[Block]:
    """The products that do not depend on the state, and the blocks they need, in order.

    These can run for several steps together, before the blocks that depend on the state.
    """
    dependent = state_dependent_buffers(kernel.blocks)
    independent = [block for block in kernel.blocks if not depends_on_state(touched(block), dependent)]
    needed: set[Buffer] = set()
    ahead: list[Block] = []
    for block in reversed(independent):
        if isinstance(block, Product) or written(block) & needed:
            ahead.append(block)
            needed |= read(block)
    return ahead[::-1]


# ---- loop fusion: loops over the same sizes become one block where that changes no value


def fuse(blocks: list[Block], new: Pointwise, *, anywhere: bool = True) -> None:
    """Add a pointwise block to `blocks`, in place, where possible as further stores of a block with the same loops.

    Its stores join the earliest such block that they can move to, past blocks that neither write what they read nor
    touch what they write. Where there is none, it becomes the last block.

    What a step reads is then read once, and a value that several stores need is computed once. With another block than
    the last one they are fused only if both depend on the state, or neither: a product whose operands do not depend on
    the state may run for several steps ahead, and must not wait for one that does.

    anywhere   False: fuse with the last block or not at all
    """
    accesses = loads(*_values(new))
    needed, results = {buffer for buffer, _ in accesses}, {store.buffer for store in new.stores}
    dependent = state_dependent_buffers(blocks)
    choice: tuple[int, Pointwise] | None = None
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        if isinstance(block, Pointwise) and block.sizes == new.sizes and _reads_what_it_stored(block, accesses):
            last = place == len(blocks) - 1
            alike = depends_on_state(needed | results, dependent) == depends_on_state(touched(block), dependent)
            choice = (place, block) if last or alike else choice
        if not anywhere or written(block) & needed or touched(block) & results:
            break
    if choice is None:
        blocks.append(new)
    else:
        place, block = choice
        blocks[place] = Pointwise(new.sizes, (*block.stores, *new.stores))


def all_depend_on_state_or_none(blocks: Sequence[Block], values: Sequence[Expression]) -> bool:
    dependent = state_dependent_buffers(blocks)
    return len({depends_on_state([buffer for buffer, _ in loads(value)], dependent) for value in values}) < 2


def _reads_what_it_stored(block: Pointwise, accesses: set[tuple[Buffer, Index | None]]) -> bool:
    """Whether new stores can join a block: they read its results only at the index at which it stores them last.

    accesses   what the new stores read, as `loads` gives it
    """
    stored = {store.buffer: store.index for store in block.stores}
    return all(stored[buffer] == index for buffer, index in accesses if buffer in stored)


def register_values(kernel: Kernel) -> set[Buffer]:
    """The scratch buffers that need no memory: read only in the iteration that stores them, at the same index."""
    buffers = set(kernel.buffers["scratch"])
    for block in kernel.blocks:
        stored: set[tuple[Buffer, Index | None]] = set()
        if not isinstance(block, Pointwise):
            buffers -= touched(block)
            continue
        for store in block.stores:
            buffers -= {
                buffer for buffer, index in loads(store.value) if index is None or (buffer, index) not in stored
            }
            stored.add((store.buffer, store.index))
    return buffers
