"""Which loops of a kernel are joined: those over the same sizes, where that changes no value.

What a step reads is then read once, and a value that several results need is computed once. Knows blocks; knows nothing
of graphs.
"""

from __future__ import annotations

from leporello.engine.kernel.description import Block, Buffer, Expression, Pointwise
from leporello.engine.kernel.index import Index
from leporello.engine.kernel.reads import places, touches, waiting, waits, written


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
