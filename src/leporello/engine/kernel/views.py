"""Views as what they do to an index: the value stays where it is, and is read at another place.

Knows ATen's views; knows nothing of memory or of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from leporello.engine.kernel.description import Apply, Expression
from leporello.engine.kernel.index import Index, flat, unflat
from leporello.engine.kernel.shapes import dims, refuse, short
from leporello.loop.graph import arguments

if TYPE_CHECKING:
    from leporello.engine.kernel.lower import Lowering

Places = tuple[Index | None, ...]


def same(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    source = arguments(node)[0]
    value = lowering.at(source, index)
    if node.meta["val"].dtype != source.meta["val"].dtype:
        return Apply("cast", (value,), node.meta["val"].dtype)
    return value


def seen(places: Callable[[fx.Node, list[Index | None]], Sequence[Index | None]]) -> Any:
    def rule(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
        return lowering.at(arguments(node)[0], tuple(places(node, list(index))))

    return rule


def reshaped(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """Axes before and behind the rows are joined and parted, each side for itself."""
    source = arguments(node)[0]
    assert isinstance(source, fx.Node)
    before, after = dims(source), dims(node)
    rows = before.index(None) if None in before else None
    if rows is None or None not in after:
        if rows is not None or None in after:
            refuse(node)
        sides = [((0, len(before)), (0, len(after)))]
    else:
        own = after.index(None)
        sides = [((0, rows), (0, own)), ((rows + 1, len(before)), (own + 1, len(after)))]
    places: list[Index | None] = []
    for number, ((a, b), (c, d)) in enumerate(sides):
        sizes, wanted = [size or 1 for size in before[a:b]], [size or 1 for size in after[c:d]]
        if _count(sizes) != _count(wanted):
            refuse(node)
        if number:
            places.append(None)
        places += unflat(flat([place or Index() for place in index[c:d]], wanted), sizes, lowering.ranges)
    return lowering.at(source, tuple(places))


def _count(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def permuted(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    order = [axis % len(index) for axis in arguments(node)[1]]
    places: list[Index | None] = [None] * len(index)
    for place, axis in zip(index, order, strict=True):
        places[axis] = place
    return places


def swapped(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    if len(index) < 2:
        return index
    one, other = (int(axis) % len(index) for axis in arguments(node)[1:3]) if len(arguments(node)) > 2 else (0, 1)
    index[one], index[other] = index[other], index[one]
    return index


def unsqueezed(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    index.pop(int(arguments(node)[1]) % len(index))
    return index


def squeezed(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    source: Any = arguments(node)[0]
    sizes = dims(source)
    asked = arguments(node)[1] if len(arguments(node)) > 1 else [axis for axis, size in enumerate(sizes) if size == 1]
    axes = {int(axis) % len(sizes) for axis in (asked if isinstance(asked, (list, tuple)) else [asked])}
    waiting = iter(index)
    return [Index() if axis in axes and size == 1 else next(waiting) for axis, size in enumerate(sizes)]


def expanded(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    source: Any = arguments(node)[0]
    own = dims(source)
    behind = index[len(index) - len(own) :]
    return [None if size is None else Index() if size == 1 else place for size, place in zip(own, behind, strict=True)]


def selected(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    source: Any = arguments(node)[0]
    axis = int(arguments(node)[1]) % len(dims(source))
    size = dims(source)[axis]
    if size is None:
        refuse(node)
    index.insert(axis, Index(int(arguments(node)[2]) % size))
    return index


def sliced(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    source: Any = arguments(node)[0]
    axis = int(arguments(node)[1]) if len(arguments(node)) > 1 else 0
    axis %= len(index)
    start = arguments(node)[2] if len(arguments(node)) > 2 else 0
    step = int(arguments(node)[4]) if len(arguments(node)) > 4 else 1
    size = dims(source)[axis]
    if size is None:
        if dims(node) == dims(source):
            return index
        refuse(node)
    begin = min(max(int(start or 0) + (size if int(start or 0) < 0 else 0), 0), size)
    index[axis] = (index[axis] or Index()).times(step).plus(Index(begin))
    return index


def spread(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    """broadcast_in_dim: each axis of the source stands where it is told."""
    source: Any = arguments(node)[0]
    order: Any = arguments(node)[2]
    return [
        None if size is None else Index() if size == 1 else index[axis]
        for size, axis in zip(dims(source), order, strict=True)
    ]


def flipped(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    for axis in arguments(node)[1]:
        size = dims(node)[axis]
        if size is None:
            refuse(node)
        index[axis] = (index[axis] or Index()).times(-1).plus(Index(size - 1))
    return index


def one_part(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """One of several results: of a split, or of an operator that is lowered whole."""
    maker: Any = arguments(node)[0]
    name, number = short(maker), int(arguments(node)[1])
    if name not in ("split", "split_with_sizes", "chunk", "unbind"):
        refuse(maker)
    source: Any = arguments(maker)[0]
    places = list(index)
    if name == "unbind":
        axis = int(arguments(maker)[1]) % len(dims(source)) if len(arguments(maker)) > 1 else 0
        places.insert(axis, Index(number))
    else:
        axis = (int(arguments(maker)[2]) if len(arguments(maker)) > 2 else 0) % len(dims(source))
        sizes = [value.shape[axis] for value in maker.meta["val"]]
        if dims(source)[axis] is None:
            refuse(maker)
        places[axis] = (places[axis] or Index()).plus(Index(int(sum(sizes[:number]))))
    if dims(source)[axis] is None:
        refuse(maker)
    return lowering.at(source, tuple(places))


VIEWS: dict[str, Callable[[Any, fx.Node, Places], Expression]] = {
    **dict.fromkeys(["clone", "alias", "detach", "contiguous", "lift_fresh_copy", "stop"], same),
    **dict.fromkeys(["view", "_unsafe_view", "reshape", "flatten", "unflatten"], reshaped),
    **dict.fromkeys(["t", "transpose"], seen(swapped)),
    **dict.fromkeys(["expand", "expand_as"], seen(expanded)),
    "permute": seen(permuted),
    "unsqueeze": seen(unsqueezed),
    "squeeze": seen(squeezed),
    "select": seen(selected),
    "slice": seen(sliced),
    "flip": seen(flipped),
    "broadcast_in_dim": seen(spread),
    "getitem": one_part,
}
PARTS = {"split", "split_with_sizes", "chunk", "unbind"}  # read through getitem alone
