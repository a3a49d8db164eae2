"""Indices that leave each row to itself, in the form of operators that act on rows alone.

`h[torch.arange(batch), i]` reads one place of each row: a `gather`. Written to, it is a `scatter`. `h[mask] = value`
with a mask of the value's own rows is a `where`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, size_of
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
    if clean_row_axis(value.meta["val"]) != 0 or any(index is None for index in indices):
        return None
    if node.target is aten.index_put.default and len(indices) == 1 and indices[0].meta["val"].dtype == torch.bool:
        return _masked(write, value, indices[0], *rest)
    if len(indices) < 2 or not _is_row_number(indices[0], write.rows):
        return None
    if any(index.meta["val"].dtype == torch.bool for index in indices):
        return None
    return _at_places(write, node, value, indices, rest)


def _is_row_number(node: fx.Node, rows: fx.Node) -> bool:
    """Whether a value is the number of each row, with or without axes of size 1 behind it."""
    while node.target in (aten.unsqueeze.default, aten.view.default, aten.expand.default, aten._to_copy.default):
        if clean_row_axis(node.meta["val"]) != 0:
            return False
        node = arguments(node)[0]
    counts = {
        aten.arange.default: (rows,),
        aten.arange.start: (0, rows),
        aten.arange.start_step: (0, rows, 1),
    }
    return node.target in counts and node.args[: len(counts[node.target])] == counts[node.target]


def _masked(
    write: GraphWriter, value: fx.Node, mask: fx.Node, put: fx.Node, accumulate: bool = False
) -> fx.Node | None:
    """`value[mask] = put` for a single number to put."""
    shape, given = value.meta["val"].shape, put.meta["val"]
    if accumulate or given.numel() != 1 or clean_row_axis(mask.meta["val"]) != 0:
        return None
    for _ in range(len(shape) - mask.meta["val"].dim()):
        mask = write(aten.unsqueeze.default, mask, -1)
    if given.dim():
        put = write(aten.view.default, put, [])
    return write(aten.where.self, mask, put, value)


def _at_places(
    write: GraphWriter, node: fx.Node, value: fx.Node, indices: Sequence[fx.Node], rest: Sequence[Any]
) -> fx.Node | None:
    """`value[row numbers, i, j]`, or a write to it, as a gather or scatter along one axis of all indexed places."""
    shape = value.meta["val"].shape
    sizes = [size_of(size) for size in shape[1 : len(indices)]]
    behind = [size_of(size) for size in shape[len(indices) :]]
    place = None
    for index, size in zip(indices[1:], sizes, strict=True):
        inside = write(aten.remainder.Scalar, index, size)  # indices may count from the end
        place = inside if place is None else write(aten.add.Tensor, write(aten.mul.Tensor, place, size), inside)
    assert place is not None
    found: Tensor = node.meta["val"] if node.target is aten.index.Tensor else _broadcast(write, indices)
    axes = found.shape[: found.dim() - len(behind)] if node.target is aten.index.Tensor else found.shape
    if clean_row_axis(found) != 0 or not all(isinstance(size, int) for size in axes[1:]):
        return None
    count = math.prod(map(int, axes[1:]))
    place = write(aten.expand.default, place, [write.rows, *axes[1:]])
    place = write.in_shape(place, [write.rows, count, *[1] * len(behind)])
    place = write(aten.expand.default, place, [write.rows, count, *behind])
    flat = write.in_shape(value, [write.rows, math.prod(sizes), *behind])
    if node.target is aten.index.Tensor:
        taken = write(aten.gather.default, flat, 1, place)
        return write.in_shape(taken, [write.rows, *axes[1:], *behind])
    put = write(aten.expand.default, rest[0], [write.rows, *axes[1:], *behind])
    put = write.in_shape(put, [write.rows, count, *behind])
    scatter = aten.scatter_add.default if len(rest) > 1 and rest[1] else aten.scatter.src
    if scatter is aten.scatter.src and count > 1:
        return None  # of equal places the last one counts in torch; a scatter promises no order
    return write.in_shape(write(scatter, flat, 1, place, put), [write.rows, *sizes, *behind])


def _broadcast(write: GraphWriter, indices: Sequence[fx.Node]) -> Tensor:
    with write.family.active():
        return torch.broadcast_tensors(*[index.meta["val"] for index in indices])[0]
