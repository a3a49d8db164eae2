"""Views as what they do to an index: the value stays where it is, and is read at another place.

Knows ATen's views; knows nothing of memory or of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from leporello.kernel.description import Apply, Expression, Index, dtype_of_expression, flat, unflat
from leporello.kernel.fx_nodes import dims, dtype_of, refuse, short
from leporello.loop.graph import arguments

if TYPE_CHECKING:
    from leporello.kernel.lower import Lowering

Places = tuple[Index | None, ...]


def cast(value: Expression, dtype: torch.dtype) -> Expression:
    """A value in another type, where it has another."""
    return value if dtype_of_expression(value) == dtype else Apply("cast", (value,), dtype)


def same(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    return cast(lowering.at(arguments(node)[0], index), dtype_of(node))


def copied(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """The second argument in the shape and type of the first."""
    source = arguments(node)[1]
    return cast(lowering.at(source, tuple(_spread(source, list(index)))), dtype_of(node))


def seen(places: Callable[[fx.Node, list[Index | None]], Sequence[Index | None]]) -> Any:
    def rule(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
        return lowering.at(arguments(node)[0], tuple(places(node, list(index))))

    return rule


def reshaped(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """Axes before and behind the rows are joined and parted, each side for itself."""
    source = arguments(node)[0]
    assert isinstance(source, fx.Node)
    if dtype_of(source) != dtype_of(node):
        refuse(node, "reads bits as another type")
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
    return _spread(arguments(node)[0], index)


def _spread(source: fx.Node, index: list[Index | None]) -> list[Index | None]:
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


def windows(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    """unfold: the last axis runs within a window, `axis` from window to window."""
    axis, step = int(arguments(node)[1]) % (len(index) - 1), int(arguments(node)[3])
    within = index.pop() or Index()
    if index[axis] is None:
        refuse(node)
    index[axis] = (index[axis] or Index()).times(step).plus(within)
    return index


def diagonal(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    """The last axis runs along two of the source's."""
    given = arguments(node)
    source: fx.Node = given[0]
    count = len(dims(source))
    offset, one, other = (int(given[place]) if len(given) > place else max(place - 2, 0) for place in (1, 2, 3))
    along = index.pop() or Index()
    for axis, shift in sorted([(one % count, max(-offset, 0)), (other % count, max(offset, 0))]):
        if dims(source)[axis] is None:
            refuse(node)
        index.insert(axis, along.plus(Index(shift)))
    return index


def strided(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """as_strided of a value whose features lie behind each other: rows stay rows, the rest is counted out."""
    given = arguments(node)
    source: fx.Node = given[0]
    sizes = dims(source)
    features = [size for size in sizes if size is not None]
    rows = [axis for axis, size in enumerate(dims(node)) if size is None]
    straight = [_count([size or 1 for size in sizes[axis + 1 :]]) for axis in range(len(sizes))]
    if None in sizes[1:] or [*source.meta["val"].stride()] != straight or not all(type(s) is int for s in given[2]):
        refuse(node)
    if (None in sizes) != bool(rows) or any(given[2][axis] != straight[0] for axis in rows):
        refuse(node)
    place = Index(int(given[3] or 0) if len(given) > 3 else 0)
    for axis, (step, own) in enumerate(zip(given[2], index, strict=True)):
        if axis not in rows:
            place = place.plus((own or Index()).times(int(step)))
    waiting = iter(unflat(place, features, lowering.ranges))
    return lowering.at(source, tuple(None if size is None else next(waiting) for size in sizes))


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
    **dict.fromkeys(["clone", "alias", "detach", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "stop"], same),
    **dict.fromkeys(["view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten"], reshaped),
    **dict.fromkeys(["t", "transpose"], seen(swapped)),
    **dict.fromkeys(["expand", "expand_as"], seen(expanded)),
    "permute": seen(permuted),
    "unsqueeze": seen(unsqueezed),
    "squeeze": seen(squeezed),
    "select": seen(selected),
    "slice": seen(sliced),
    "flip": seen(flipped),
    "unfold": seen(windows),
    "diagonal": seen(diagonal),
    "as_strided": strided,
    "copy": copied,
    "broadcast_in_dim": seen(spread),
    "getitem": one_part,
}
PARTS = {"split", "split_with_sizes", "chunk", "unbind"}  # read through getitem alone
