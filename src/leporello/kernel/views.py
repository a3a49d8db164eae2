"""Views as what they do to an index: the value stays where it is, and is read at another position.

A rule of `VIEW_RULES` takes the operator and the index at which its value is wanted, and gives the expression there:
that of its argument at another index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import fx

from leporello.kernel.description import Expression
from leporello.kernel.index import Index, row_major, split_row_major
from leporello.kernel.lowering_context import LoweringContext, Positions, cast, dims, dtype_of, refuse, short
from leporello.loop.graph import arguments
from leporello.loop.sizes import AnySize, Size

SPLITS = {"split", "split_with_sizes", "chunk", "unbind"}  # have several results, which are read through getitem

IndexRule = Callable[[fx.Node, list[Index | None]], list[Index | None]]  # of a view: to an index of its argument
ViewRule = Callable[[LoweringContext, fx.Node, Positions], Expression]


def same_value(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """The first argument at the same index, in the operator's type."""
    return cast(context.at(arguments(node)[0], index), dtype_of(node))


def broadcast(source: fx.Node, index: Positions | list[Index | None]) -> list[Index | None]:
    """The index of a value that is broadcast to a larger shape, from an index of that shape; None for the rows."""
    sizes = dims(source)
    behind = index[len(index) - len(sizes) :]
    return [
        None if size is None else Index() if size == 1 else position
        for size, position in zip(sizes, behind, strict=True)
    ]


def _by_index(rule: IndexRule) -> ViewRule:
    """Returns the rule of a view: its value is its argument's, at the index that `rule` gives."""

    def view(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
        return context.at(arguments(node)[0], tuple(rule(node, list(index))))

    return view


# ---- the order of axes, and axes of size one


def _permute(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    order = [axis % len(index) for axis in arguments(node)[1]]
    positions: list[Index | None] = [None] * len(index)
    for position, axis in zip(index, order, strict=True):
        positions[axis] = position
    return positions


def _transpose(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    if len(index) < 2:
        return index
    one, other = (int(axis) % len(index) for axis in arguments(node)[1:3]) if len(arguments(node)) > 2 else (0, 1)
    index[one], index[other] = index[other], index[one]
    return index


def _unsqueeze(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    index.pop(int(arguments(node)[1]) % len(index))
    return index


def _squeeze(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    source: Any = arguments(node)[0]
    sizes = dims(source)
    axes = arguments(node)[1] if len(arguments(node)) > 1 else [axis for axis, size in enumerate(sizes) if size == 1]
    removed = {int(axis) % len(sizes) for axis in (axes if isinstance(axes, (list, tuple)) else [axes])}
    positions = iter(index)
    return [Index() if axis in removed and size == 1 else next(positions) for axis, size in enumerate(sizes)]


def _expand(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    return broadcast(arguments(node)[0], index)


def _broadcast_in_dim(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    """broadcast_in_dim: axis n of the source becomes axis order[n] of the result."""
    source: Any = arguments(node)[0]
    order: Any = arguments(node)[2]
    return [
        None if size is None else Index() if size == 1 else index[axis]
        for size, axis in zip(dims(source), order, strict=True)
    ]


# ---- parts of a value


def _select(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    source: Any = arguments(node)[0]
    axis = int(arguments(node)[1]) % len(dims(source))
    size = dims(source)[axis]
    if size is None:
        refuse(node)
    place = int(arguments(node)[2])
    index.insert(axis, Index(place if place >= 0 else size + place))
    return index


def _slice(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
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
    if isinstance(start, Size):  # torch has put it into its bounds: it is the end of another part
        begin: AnySize = start
    else:
        begin = min(max(int(start or 0) + (size if int(start or 0) < 0 else 0), 0), size)
    index[axis] = (index[axis] or Index()).times(step).plus(Index(begin))
    return index


def _flip(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    for axis in arguments(node)[1]:
        size = dims(node)[axis]
        if size is None:
            refuse(node)
        index[axis] = (index[axis] or Index()).times(-1).plus(Index(size - 1))
    return index


def _unfold(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    """unfold: the last axis runs within a window, `axis` from window to window."""
    axis, step = int(arguments(node)[1]) % (len(index) - 1), int(arguments(node)[3])
    within = index.pop() or Index()
    if index[axis] is None:
        refuse(node)
    index[axis] = (index[axis] or Index()).times(step).plus(within)
    return index


def _diagonal(node: fx.Node, index: list[Index | None]) -> list[Index | None]:
    """diagonal: the last axis runs along two axes of the source at once."""
    options = arguments(node)
    source: fx.Node = options[0]
    count = len(dims(source))
    offset, one, other = (int(options[place]) if len(options) > place else max(place - 2, 0) for place in (1, 2, 3))
    along = index.pop() or Index()
    for axis, shift in sorted([(one % count, max(-offset, 0)), (other % count, max(offset, 0))]):
        if dims(source)[axis] is None:
            refuse(node)
        index.insert(axis, along.plus(Index(shift)))
    return index


def _getitem(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """getitem: one result of an operator of `SPLITS`; of other operators with several results it is refused."""
    split: Any = arguments(node)[0]
    name, number = short(split), int(arguments(node)[1])
    if name not in SPLITS:
        refuse(split)
    source: Any = arguments(split)[0]
    positions = list(index)
    if name == "unbind":
        axis = int(arguments(split)[1]) % len(dims(source)) if len(arguments(split)) > 1 else 0
        positions.insert(axis, Index(number))
    else:
        axis = (int(arguments(split)[2]) if len(arguments(split)) > 2 else 0) % len(dims(source))
        sizes = [value.shape[axis] for value in split.meta["val"]]
        if dims(source)[axis] is None:
            refuse(split)
        positions[axis] = (positions[axis] or Index()).plus(Index(int(sum(sizes[:number]))))
    if dims(source)[axis] is None:
        refuse(split)
    return context.at(source, tuple(positions))


# ---- other shapes


def _reshape(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """view, reshape, ...: axes before the rows, and axes behind them, are merged and split, each side for itself."""
    source = arguments(node)[0]
    assert isinstance(source, fx.Node)
    if dtype_of(source) != dtype_of(node):
        refuse(node, "reads bits as another type")
    before, after = dims(source), dims(node)
    if (None in before) != (None in after):
        refuse(node)
    if None in before:
        rows, new_rows = before.index(None), after.index(None)
        sides = [((0, rows), (0, new_rows)), ((rows + 1, len(before)), (new_rows + 1, len(after)))]
    else:
        sides = [((0, len(before)), (0, len(after)))]
    positions: list[Index | None] = []
    for number, ((a, b), (c, d)) in enumerate(sides):
        sizes, new_sizes = [size or 1 for size in before[a:b]], [size or 1 for size in after[c:d]]
        if math.prod(sizes) != math.prod(new_sizes):
            refuse(node)
        if number:
            positions.append(None)
        memory = row_major([position or Index() for position in index[c:d]], new_sizes)
        positions += split_row_major(memory, sizes, context.ranges)
    return context.at(source, tuple(positions))


def _as_strided(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """as_strided of a contiguous value: rows stay rows, the position among the features follows from the strides."""
    options = arguments(node)
    source: fx.Node = options[0]
    sizes = dims(source)
    features = [size for size in sizes if size is not None]
    rows = [axis for axis, size in enumerate(dims(node)) if size is None]
    contiguous = [math.prod(size or 1 for size in sizes[axis + 1 :]) for axis in range(len(sizes))]
    if None in sizes[1:] or [*source.meta["val"].stride()] != contiguous or not all(type(s) is int for s in options[2]):
        refuse(node)
    if (None in sizes) != bool(rows) or any(options[2][axis] != contiguous[0] for axis in rows):
        refuse(node)
    memory = Index(int(options[3] or 0) if len(options) > 3 else 0)
    for axis, (step, position) in enumerate(zip(options[2], index, strict=True)):
        if axis not in rows:
            memory = memory.plus((position or Index()).times(int(step)))
    positions = iter(split_row_major(memory, features, context.ranges))
    return context.at(source, tuple(None if size is None else next(positions) for size in sizes))


def _copy(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """copy: the second argument, broadcast to the shape of the first and in its type."""
    source = arguments(node)[1]
    return cast(context.at(source, tuple(broadcast(source, index))), dtype_of(node))


VIEW_RULES: dict[str, ViewRule] = {
    **dict.fromkeys(
        ["clone", "alias", "detach", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "stop"], same_value
    ),
    **dict.fromkeys(["view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten"], _reshape),
    **dict.fromkeys(["t", "transpose"], _by_index(_transpose)),
    **dict.fromkeys(["expand", "expand_as"], _by_index(_expand)),
    "permute": _by_index(_permute),
    "unsqueeze": _by_index(_unsqueeze),
    "squeeze": _by_index(_squeeze),
    "select": _by_index(_select),
    "slice": _by_index(_slice),
    "flip": _by_index(_flip),
    "unfold": _by_index(_unfold),
    "diagonal": _by_index(_diagonal),
    "as_strided": _as_strided,
    "copy": _copy,
    "broadcast_in_dim": _by_index(_broadcast_in_dim),
    "getitem": _getitem,
}
