"""Values that are put together piece by piece: joined, padded, or written to in one part.

Knows ATen's joins; knows nothing of blocks or of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from leporello.kernel.description import Constant, Expression, Index
from leporello.kernel.fx_nodes import dims, dtype_of, features, refuse, short
from leporello.kernel.views import Places, cast
from leporello.loop.graph import arguments

if TYPE_CHECKING:
    from leporello.kernel.lower import Lowering


@dataclass(frozen=True)
class Piece:
    """Loops over `sizes` that put a value into its place.

    over   whether it is written over a piece before it
    """

    sizes: tuple[int, ...]
    value: Expression
    place: Places
    over: bool = False


def pieces_of(lowering: Lowering, node: fx.Node) -> Iterator[Piece]:
    """The pieces of a value in the order in which they are written."""
    return PIECES[short(node)](lowering, node)


def _read(lowering: Lowering, node: fx.Node, like: fx.Node) -> tuple[tuple[int, ...], Expression, list[Index | None]]:
    """All of a value: its sizes, what it is, where."""
    sizes = tuple(features(node))
    places = lowering.with_rows(node, lowering.variables(sizes))
    return sizes, cast(lowering.at(node, places), dtype_of(like)), list(places)


def _axis(node: fx.Node, given: Any) -> int:
    axis = int(given) % len(dims(node))
    if dims(node)[axis] is None:
        refuse(node, "joins rows")
    return axis


def _joined(lowering: Lowering, node: fx.Node) -> Iterator[Piece]:
    """cat, stack: parts behind each other along an axis."""
    axis = _axis(node, arguments(node)[1] if len(arguments(node)) > 1 else node.kwargs.get("dim", 0))
    begin = 0
    for part in arguments(node)[0]:
        if part.meta["val"].dim() == 1 and part.meta["val"].shape[0] == 0:
            continue  # an empty tensor joins anything
        sizes, value, place = _read(lowering, part, node)
        if short(node) == "stack":
            place.insert(axis, Index(begin))
            begin += 1
        else:
            place[axis] = (place[axis] or Index()).plus(Index(begin))
            begin += dims(part)[axis] or 0
        yield Piece(sizes, value, tuple(place))


def _all_of(lowering: Lowering, node: fx.Node, source: fx.Node) -> Piece:
    sizes, value, place = _read(lowering, source, node)
    return Piece(sizes, value, tuple(place))


def _slice_written(lowering: Lowering, node: fx.Node) -> Iterator[Piece]:
    target, source, *given = arguments(node)
    axis = _axis(node, given[0] if given else 0)
    size = dims(node)[axis] or 0
    start = int(given[1] or 0) if len(given) > 1 else 0
    step = int(given[3]) if len(given) > 3 else 1
    yield _all_of(lowering, node, target)
    sizes, value, place = _read(lowering, source, node)
    begin = min(max(start + (size if start < 0 else 0), 0), size)
    place[axis] = (place[axis] or Index()).times(step).plus(Index(begin))
    yield Piece(sizes, value, tuple(place), over=True)


def _place_written(lowering: Lowering, node: fx.Node) -> Iterator[Piece]:
    target, source, axis, number = arguments(node)
    axis = _axis(node, axis)
    yield _all_of(lowering, node, target)
    sizes, value, place = _read(lowering, source, node)
    place.insert(axis, Index(int(number) % (dims(node)[axis] or 1)))
    yield Piece(sizes, value, tuple(place), over=True)


def _diagonal_written(lowering: Lowering, node: fx.Node) -> Iterator[Piece]:
    target, source, *given = arguments(node)
    offset, one, other = (int(given[place]) if len(given) > place else max(place - 1, 0) for place in (0, 1, 2))
    axes = sorted([(_axis(node, one), max(-offset, 0)), (_axis(node, other), max(offset, 0))])
    yield _all_of(lowering, node, target)
    sizes, value, place = _read(lowering, source, node)
    along = place.pop() or Index()
    for axis, shift in axes:
        place.insert(axis, along.plus(Index(shift)))
    yield Piece(sizes, value, tuple(place), over=True)


def _padded(lowering: Lowering, node: fx.Node) -> Iterator[Piece]:
    """A constant all over, then the value; a negative border cuts it short."""
    source, borders = arguments(node)[:2]
    number: Any = arguments(node)[2] if len(arguments(node)) > 2 else 0
    count = len(dims(node))
    before, behind = [0] * count, [0] * count
    for place, border in enumerate(borders):
        (behind if place % 2 else before)[count - 1 - place // 2] = int(border)
    if any((b or a) and size is None for b, a, size in zip(before, behind, dims(node), strict=True)):
        refuse(node, "adds rows")
    whole = lowering.with_rows(node, lowering.variables(features(node)))
    yield Piece(tuple(features(node)), Constant(number, dtype_of(node)), whole)
    sizes = [
        size + min(b, 0) + min(a, 0)
        for size, b, a in zip(dims(source), before, behind, strict=True)
        if size is not None
    ]
    if min(sizes, default=1) < 1:
        return
    places = lowering.with_rows(node, lowering.variables(sizes))
    there = tuple(p if p is None else p.plus(Index(max(-b, 0))) for p, b in zip(places, before, strict=True))
    here = tuple(p if p is None else p.plus(Index(max(b, 0))) for p, b in zip(places, before, strict=True))
    yield Piece(tuple(sizes), cast(lowering.at(source, there), dtype_of(node)), here, over=True)


PIECES: dict[str, Callable[[Any, fx.Node], Iterator[Piece]]] = {
    "cat": _joined,
    "stack": _joined,
    "slice_scatter": _slice_written,
    "select_scatter": _place_written,
    "diagonal_scatter": _diagonal_written,
    "constant_pad_nd": _padded,
}
