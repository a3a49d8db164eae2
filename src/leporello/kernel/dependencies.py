"""What the blocks of a kernel read and write, and which of them wait for no state.

Knows descriptions of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leporello.kernel.description import (
    Apply,
    Block,
    Buffer,
    Expression,
    Fetch,
    Index,
    Kernel,
    Load,
    Pointwise,
    Product,
    Reduction,
)


def written(block: Block) -> set[Buffer]:
    """The memory a block writes to."""
    if isinstance(block, Pointwise):
        return {store.buffer for store in block.stores}
    return {block.buffer if isinstance(block, Reduction) else block.out}


def read(block: Block) -> set[Buffer]:
    """The memory a block reads; the matrix of a product aside."""
    if isinstance(block, Product):
        return {block.left}
    values = [store.value for store in block.stores] if isinstance(block, Pointwise) else [block.value]
    return {buffer for buffer, _ in places(*values)}


def places(*values: Expression) -> set[tuple[Buffer, Index | None]]:
    """What expressions read in memory, and where; None for a place that is computed."""
    left = list(values)
    found: set[tuple[Buffer, Index | None]] = set()
    seen: set[int] = set()
    while left:
        value = left.pop()
        if id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, (Load, Fetch)):
                found.add((value.buffer, value.index if isinstance(value, Load) else None))
            left += _parts(value)
    return found


def _parts(value: Expression) -> Iterator[Expression]:
    if isinstance(value, Apply):
        yield from value.arguments
    elif isinstance(value, Fetch):
        yield from (along.number for along in value.by)


def touches(block: Block) -> set[Buffer]:
    return read(block) | written(block)


def carried(kernel: Kernel) -> set[Buffer]:
    """Scratch that needs no memory: each value is read where it was just computed, at the same place, nowhere else."""
    found = set(kernel.buffers["scratch"])
    for block in kernel.blocks:
        known: set[tuple[Buffer, Index]] = set()
        if not isinstance(block, Pointwise):
            found -= touches(block)
            continue
        for store in block.stores:
            found -= {buffer for buffer, index in places(store.value) if index is None or (buffer, index) not in known}
            known.add((store.buffer, store.index))
    return found


def loaded(kernel: Kernel) -> set[int]:
    """The slots of fixed values that are read as they lie in memory, not only multiplied by."""
    return {buffer.slot for block in kernel.blocks for buffer in read(block) if buffer.place == "fixed"}


def waits(buffers: Iterable[Buffer], late: set[Buffer]) -> bool:
    """Whether some of this memory holds a state, or a value that waits for one."""
    return any(buffer in late or buffer.place in ("state", "next") for buffer in buffers)


def waiting(blocks: Sequence[Block]) -> set[Buffer]:
    """The memory of blocks that wait for a state: all that they write, for they run as a whole."""
    found: set[Buffer] = set()
    while more := {buffer for block in blocks if waits(touches(block), found) for buffer in written(block)} - found:
        found |= more
    return found


def ahead(kernel: Kernel) -> list[Block]:
    """Products that wait for no state, and what they need: these can run before the steps that read them."""
    late = waiting(kernel.blocks)
    free = [block for block in kernel.blocks if not waits(touches(block), late)]
    needed: set[Buffer] = set()
    found: list[Block] = []
    for block in reversed(free):
        if isinstance(block, Product) or written(block) & needed:
            found.append(block)
            needed |= read(block)
    return found[::-1]


# ---- loop fusion: loops over the same sizes become one where that changes no value


def join(blocks: list[Block], new: Pointwise, *, early: bool = True) -> None:
    """Put new loops into the first block that they can be joined to; behind all others where there is none.

    Elsewhere than at the end they go only where they wait for states as the block does: products of what waits for none
    may run for several steps together.

    early   whether they may go elsewhere than to the end at all
    """
    reads = places(*(store.value for store in new.stores))
    needed, own = {buffer for buffer, _ in reads}, {store.buffer for store in new.stores}
    late = waiting(blocks)
    found: tuple[int, Pointwise] | None = None
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        if isinstance(block, Pointwise) and block.sizes == new.sizes and _where_it_was_put(block, reads):
            same = place == len(blocks) - 1 or waits(needed | own, late) == waits(touches(block), late)
            found = (place, block) if same else found
        if not early or written(block) & needed or touches(block) & own:
            break
    if found is None:
        blocks.append(new)
    else:
        place, block = found
        blocks[place] = Pointwise(new.sizes, (*block.stores, *new.stores))


def alike(blocks: list[Block], values: list[Expression]) -> bool:
    """Whether all of these values wait for a state, or none."""
    late = waiting(blocks)
    return len({waits([buffer for buffer, _ in places(value)], late) for value in values}) < 2


def _where_it_was_put(block: Pointwise, reads: set[tuple[Buffer, Index | None]]) -> bool:
    """Whether what is read of a block's results is read at the place where it was put; of several, the last."""
    put = {store.buffer: store.index for store in block.stores}
    return all(put[buffer] == index for buffer, index in reads if buffer in put)
