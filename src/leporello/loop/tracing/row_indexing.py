"""Indices that leave each row to itself, in the form of operators that act on rows alone.

`h[torch.arange(batch), i]` reads one place of each row: a `gather`. Written to, it is a `scatter`. `h[mask] = value`
with a mask of the value's own rows is a `where`. Masks of numpy, whose numbers are known, become the places where they
hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from leporello.errors import UntraceableStep
from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, row_axes, size_of
from leporello.loop.graph import GraphWriter, arguments

aten = torch.ops.aten


def index_rows(graph: fx.Graph, family: FakeTensorFamily) -> None:
    """Replace, in place, what indexes each row by its own number, or by a mask, by operators on rows."""
    for node in list(graph.nodes):
        if node.target not in (aten.index.Tensor, aten.index_put.default):
            continue
        with graph.inserting_before(node):
            instead = _instead(GraphWriter(graph, family), node)
        if instead is not None:
            node.replace_all_uses_with(instead)
            graph.erase_node(node)


def _instead(write: GraphWriter, node: fx.Node) -> fx.Node | None:
    """The same value by operators on rows; None if there is no such form."""
    value, indices, *rest = arguments(node)
    if clean_row_axis(value.meta["val"]) != 0:
        return None
    present = [index for index in indices if index is not None]
    masks = [index for index in present if index.meta["val"].dtype == torch.bool]
    if masks:
        single = node.target is aten.index_put.default and len(present) == 1 and indices[-1] is masks[0]
        return _masked(write, node, value, masks[0], len(indices) - 1, *rest) if single else None
    if len(indices) < 2 or len(present) < len(indices):
        return None
    if _is_row_number(indices[0], write.rows):
        found = node.meta["val"] if node.target is aten.index.Tensor else _broadcast(write, indices)
        axes = found.shape[: found.dim() - (value.meta["val"].dim() - len(indices))]
        axes = found.shape if node.target is aten.index_put.default else axes
        if clean_row_axis(found) != 0 or not all(isinstance(size, int) for size in axes[1:]):
            return None
        return _at_places(write, node, value, indices[1:], rest, list(map(int, axes[1:])))
    each = _places_in_each_row(indices[0], write)
    if each is None or any(index.meta["val"].shape != indices[0].meta["val"].shape for index in indices):
        return None
    apart = [write.in_shape(index, [write.rows, each]) for index in indices[1:]]
    if rest and row_axes(rest[0].meta["val"]):
        rest = [write.in_shape(rest[0], [write.rows, each, *rest[0].meta["val"].shape[1:]]), *rest[1:]]
    instead = _at_places(write, node, value, apart, rest, [each])
    if instead is None or node.target is aten.index_put.default:
        return instead
    return write.in_shape(instead, [-1, *value.meta["val"].shape[len(indices) :]])


def _is_row_number(node: fx.Node, rows: fx.Node) -> bool:
    """Whether a value is the number of each row, with or without axes behind it."""
    while node.target in _KEEP_ROW_NUMBERS:
        if clean_row_axis(node.meta["val"]) != 0:
            return False
        node = arguments(node)[0]
    counts = {
        aten.arange.default: (rows,),
        aten.arange.start: (0, rows),
        aten.arange.start_step: (0, rows, 1),
    }
    return node.target in counts and node.args[: len(counts[node.target])] == counts[node.target]


_KEEP_ROW_NUMBERS = (
    aten.unsqueeze.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.repeat.default,
    aten.clone.default,
    aten._to_copy.default,
)


def _places_in_each_row(node: fx.Node, write: GraphWriter) -> int | None:
    """How often a value has the number of each row, one behind the other: `arange(batch).repeat_interleave(2)`, 2.

    None for another value.
    """
    value = node.meta["val"]
    if node.target not in (aten.view.default, aten._unsafe_view.default) or value.dim() != 1 or row_axes(value) != [0]:
        return None
    each = write.family.per_row(value.shape[0])
    return each if isinstance(each, int) and _is_row_number(arguments(node)[0], write.rows) else None


def _masked(
    write: GraphWriter,
    node: fx.Node,
    value: fx.Node,
    mask: fx.Node,
    axis: int,
    put: fx.Node,
    accumulate: bool = False,
) -> fx.Node | None:
    """`value[mask] = put` for what does not depend on how many elements the mask holds; others are refused.

    axis   the first one of the value that the mask is for: 1 for `value[:, mask]`
    """
    of_mask, given = mask.meta["val"], put.meta["val"]
    behind = value.meta["val"].dim() - axis - of_mask.dim()
    for _ in range(behind):
        mask = write(aten.unsqueeze.default, mask, -1)
    if accumulate or (axis == 0) != (clean_row_axis(of_mask) == 0):
        return None
    while given.dim() > behind and given.shape[0] == 1:
        put = write(aten.squeeze.dim, put, 0)
        given = put.meta["val"]
    if given.dim() > behind:
        raise UntraceableStep(
            "the step writes as many values as a mask holds, which differs from step to step.",
            line=node.meta.get("line"),
            tries="h = torch.where(mask.unsqueeze(1), values, h), with values for every row",
        )
    return write(aten.where.self, mask, put, value)


def _at_places(
    write: GraphWriter,
    node: fx.Node,
    value: fx.Node,
    indices: Sequence[fx.Node],
    rest: Sequence[Any],
    places: Sequence[int],
) -> fx.Node | None:
    """`value[row numbers, i, j]`, or a write to it, as a gather or scatter along one axis of all indexed places.

    indices   those behind the row numbers; they broadcast to [rows, *places]
    rest      of a write: what is written, and whether it is added
    """
    shape = value.meta["val"].shape
    sizes = [size_of(size) for size in shape[1 : 1 + len(indices)]]
    behind = [size_of(size) for size in shape[1 + len(indices) :]]
    place = None
    for index, size in zip(indices, sizes, strict=True):
        inside = write(aten.remainder.Scalar, index, size)  # indices may count from the end
        place = inside if place is None else write(aten.add.Tensor, write(aten.mul.Tensor, place, size), inside)
    assert place is not None
    count = math.prod(places)
    place = write(aten.expand.default, place, [write.rows, *places])
    place = write.in_shape(place, [write.rows, count, *[1] * len(behind)])
    place = write(aten.expand.default, place, [write.rows, count, *behind])
    flat = write.in_shape(value, [write.rows, math.prod(sizes), *behind])
    if node.target is aten.index.Tensor:
        taken = write(aten.gather.default, flat, 1, place)
        return write.in_shape(taken, [write.rows, *places, *behind])
    added = len(rest) > 1 and rest[1]
    put = write(aten.expand.default, rest[0], [write.rows, *places, *behind])
    put = write.in_shape(put, [write.rows, count, *behind])
    scatter = aten.scatter_add.default if added else aten.scatter.src
    return write.in_shape(write(scatter, flat, 1, place, put), [write.rows, *sizes, *behind])


def _broadcast(write: GraphWriter, indices: Sequence[fx.Node]) -> Tensor:
    with write.family.active():
        return torch.broadcast_tensors(*[index.meta["val"] for index in indices])[0]


class FixedMasks(TorchFunctionMode):
    """While active, a boolean numpy array or list in an index becomes the places where it holds: they are known."""

    def __torch_function__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            value, index, *rest = args
            index = tuple(map(_places, index)) if isinstance(index, tuple) else _places(index)
            args = (value, index, *rest)
        return func(*args, **(kwargs or {}))


def _places(index: Any) -> Any:
    """A mask as the numbers of the places where it holds; another index as it is."""
    if isinstance(index, list) and index and all(isinstance(item, bool) for item in index):
        return [place for place, holds in enumerate(index) if holds]
    if type(index).__module__ == "numpy" and getattr(index, "ndim", 0) == 1 and index.dtype == bool:
        return index.nonzero()[0]
    return index
