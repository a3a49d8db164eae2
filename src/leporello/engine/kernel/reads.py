"""What the blocks of a kernel read and write, and which of them wait for no state.

Knows descriptions of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

from leporello.engine.kernel.description import (
    Apply,
    Block,
    Buffer,
    Expression,
    Fetch,
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
    waiting = [store.value for store in block.stores] if isinstance(block, Pointwise) else [block.value]
    found: set[Buffer] = set()
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, (Load, Fetch)):
                found.add(value.buffer)
            waiting += _parts(value)
    return found


def _parts(value: Expression) -> Iterator[Expression]:
    if isinstance(value, Apply):
        yield from value.arguments
    elif isinstance(value, Fetch):
        yield from (along.number for along in value.by)


def touches(block: Block) -> set[Buffer]:
    return read(block) | written(block)


def loaded(kernel: Kernel) -> set[int]:
    """The slots of fixed values that are read as they lie in memory, not only multiplied by."""
    return {buffer.slot for block in kernel.blocks for buffer in read(block) if buffer.place == "fixed"}


def ahead(kernel: Kernel) -> list[Block]:
    """Products that wait for no state, and what they need: these can run before the steps that read them."""
    waiting: set[Buffer] = set()
    free: list[Block] = []
    for block in kernel.blocks:
        if any(buffer in waiting or buffer.place in ("state", "next") for buffer in touches(block)):
            waiting |= written(block)
        else:
            free.append(block)
    free = [block for block in free if not written(block) & waiting]
    needed: set[Buffer] = set()
    found: list[Block] = []
    for block in reversed(free):
        if isinstance(block, Product) or written(block) & needed:
            found.append(block)
            needed |= read(block)
    return found[::-1]
