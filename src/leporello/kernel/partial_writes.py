"""Values that are written part by part: concatenated, padded, or copied with one part replaced.

A rule of `PARTIAL_WRITES` takes the operator and gives its writes in order; `lower` makes loops of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from leporello.kernel.description import Constant, Expression
from leporello.kernel.index import Index
from leporello.kernel.lowering_context import LoweringContext, Positions, cast, dims, dtype_of, features, refuse, short
from leporello.loop.graph import arguments
from leporello.loop.sizes import AnySize


@dataclass(frozen=True)
class PartialWrite:
    """One part of a value: loops over `sizes` that store an element of the part.

    value        the element of the part, at the loops' variables
    index        where it is stored: an index of the whole value
    overwrites   whether an earlier write has stored something there, so that the order counts
    """

    sizes: tuple[AnySize, ...]
    value: Expression
    index: Positions
    overwrites: bool = False


def partial_writes_of(context: LoweringContext, node: fx.Node) -> Iterator[PartialWrite]:
    """The writes that the value of an operator of `PARTIAL_WRITES` is made of, in order."""
    return PARTIAL_WRITES[short(node)](context, node)


def _whole(
    context: LoweringContext, node: fx.Node, like: fx.Node
) -> tuple[tuple[AnySize, ...], Expression, list[Index | None]]:
    """A part in loops over all of it: the loops' sizes, its element in the type of `like`, and that element's index.

    The index is a new list, which the caller changes to one of the whole value.
    """
    sizes = tuple(features(node))
    places = context.with_rows(node, context.variables(sizes))
    return sizes, cast(context.at(node, places), dtype_of(like)), list(places)


def _axis(node: fx.Node, number: Any) -> int:
    axis = int(number) % len(dims(node))
    if dims(node)[axis] is None:
        refuse(node, "joins rows")
    return axis


def _concatenate(context: LoweringContext, node: fx.Node) -> Iterator[PartialWrite]:
    """cat, stack: parts one after the other along an axis; along that of the rows is refused."""
    axis = _axis(node, arguments(node)[1] if len(arguments(node)) > 1 else node.kwargs.get("dim", 0))
    begin = 0
    for part in arguments(node)[0]:
        if part.meta["val"].dim() == 1 and part.meta["val"].shape[0] == 0:
            continue  # an empty tensor joins anything
        sizes, value, index = _whole(context, part, node)
        if short(node) == "stack":
            index.insert(axis, Index(begin))
            begin += 1
        else:
            index[axis] = (index[axis] or Index()).plus(Index(begin))
            begin += dims(part)[axis] or 0
        yield PartialWrite(sizes, value, tuple(index))


def _copy_of(context: LoweringContext, node: fx.Node, source: fx.Node) -> PartialWrite:
    sizes, value, index = _whole(context, source, node)
    return PartialWrite(sizes, value, tuple(index))


def _slice_scatter(context: LoweringContext, node: fx.Node) -> Iterator[PartialWrite]:
    target, source, *options = arguments(node)
    axis = _axis(node, options[0] if options else 0)
    size = dims(node)[axis] or 0
    start = int(options[1] or 0) if len(options) > 1 else 0
    step = int(options[3]) if len(options) > 3 else 1
    yield _copy_of(context, node, target)
    sizes, value, index = _whole(context, source, node)
    begin = min(max(start + (size if start < 0 else 0), 0), size)
    index[axis] = (index[axis] or Index()).times(step).plus(Index(begin))
    yield PartialWrite(sizes, value, tuple(index), overwrites=True)


def _select_scatter(context: LoweringContext, node: fx.Node) -> Iterator[PartialWrite]:
    target, source, axis, number = arguments(node)
    axis = _axis(node, axis)
    yield _copy_of(context, node, target)
    sizes, value, index = _whole(context, source, node)
    place = int(number)
    index.insert(axis, Index(place if place >= 0 else place + (dims(node)[axis] or 0)))
    yield PartialWrite(sizes, value, tuple(index), overwrites=True)


def _diagonal_scatter(context: LoweringContext, node: fx.Node) -> Iterator[PartialWrite]:
    target, source, *options = arguments(node)
    offset, one, other = (int(options[place]) if len(options) > place else max(place - 1, 0) for place in (0, 1, 2))
    axes = sorted([(_axis(node, one), max(-offset, 0)), (_axis(node, other), max(offset, 0))])
    yield _copy_of(context, node, target)
    sizes, value, index = _whole(context, source, node)
    along = index.pop() or Index()
    for axis, shift in axes:
        index.insert(axis, along.plus(Index(shift)))
    yield PartialWrite(sizes, value, tuple(index), overwrites=True)


def _pad(context: LoweringContext, node: fx.Node) -> Iterator[PartialWrite]:
    """constant_pad_nd: the constant everywhere, then the argument; a negative border cuts it short."""
    source, borders = arguments(node)[:2]
    number: Any = arguments(node)[2] if len(arguments(node)) > 2 else 0
    count = len(dims(node))
    before, behind = [0] * count, [0] * count
    for place, border in enumerate(borders):
        (behind if place % 2 else before)[count - 1 - place // 2] = int(border)
    if any((b or a) and size is None for b, a, size in zip(before, behind, dims(node), strict=True)):
        refuse(node, "adds rows")
    whole = context.with_rows(node, context.variables(features(node)))
    yield PartialWrite(tuple(features(node)), Constant(number, dtype_of(node)), whole)
    sizes = [
        size + min(b, 0) + min(a, 0)
        for size, b, a in zip(dims(source), before, behind, strict=True)
        if size is not None
    ]
    if min(sizes, default=1) < 1:
        return
    places = context.with_rows(node, context.variables(sizes))
    there = tuple(p if p is None else p.plus(Index(max(-b, 0))) for p, b in zip(places, before, strict=True))
    here = tuple(p if p is None else p.plus(Index(max(b, 0))) for p, b in zip(places, before, strict=True))
    yield PartialWrite(tuple(sizes), cast(context.at(source, there), dtype_of(node)), here, overwrites=True)


PARTIAL_WRITES: dict[str, Callable[[LoweringContext, fx.Node], Iterator[PartialWrite]]] = {
    "cat": _concatenate,
    "stack": _concatenate,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "constant_pad_nd": _pad,
}
