"""Where the elements of a factor of a product that sums over rows are, in the rows of the value it is a view of.

A gradient of a matrix that multiplies values with several axes, such as heads or nodes, is a product of views whose
summed axis is rows joined with other axes. `row_elements` runs the views on positions instead of numbers, and finds the
steps from one position to the next: then the product needs no copy in the order of the views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import arguments
from leporello.loop.value_classes import is_view

aten = torch.ops.aten

MAX_ELEMENTS = 128  # of a row that are summed too: a strip of totals.c
MAX_ROW_NUMBERS = 1 << 14  # of a value whose views are run on positions
ROWS = (3, 5)  # for which that is done; the steps must be the same


class RowElements(NamedTuple):
    """A factor [heads, rows and inner elements, columns] of a product that sums over rows and inner elements.

    value     what it is a view of
    steps     where its elements begin in a row, and the distances along heads, inner elements and columns
    """

    value: fx.Node
    heads: int
    inner: int
    columns: int
    steps: tuple[int, int, int, int]
    rows_first: bool  # whether the inner elements of a row are one behind another, in the summed axis


def same_elements(one: RowElements, other: RowElements) -> bool:
    """Whether two factors have the same summed axis."""
    return (one.heads, one.inner, one.rows_first) == (other.heads, other.inner, other.rows_first)


def fixed_features(node: fx.Node) -> int:
    """How many numbers a row of a value has; 0 where that is not known before the call."""
    count = 1
    for axis, size in enumerate(node.meta["val"].shape):
        if axis == clean_row_axis(node.meta["val"]):
            continue
        if not isinstance(size, int):
            return 0
        count *= size
    return count


def row_elements(factor: fx.Node, order: Sequence[Sequence[int]]) -> RowElements | None:
    """The elements of a factor of a product; None where they are at no regular distances.

    They are those of the value furthest back of which the factor is a view and in which they are regular.

    order   of its axes: heads, summed axes, columns
    """
    chain = [factor]
    while is_view(chain[-1]) or chain[-1].target is aten.clone.default:
        chain.append(chain[-1].all_input_nodes[0])
    for value in reversed(chain):
        count = _countable(value)
        if count:
            found = [_in_rows(factor, value, order, rows, count) for rows in ROWS]
            if found[0] is not None and found[0] == found[1]:
                return found[0]
    return None


def _countable(value: fx.Node) -> int:
    """How many numbers a row of a value has, if it has few, and rows along an axis of their own; else 0."""
    example = value.meta.get("val")
    if not isinstance(example, Tensor) or clean_row_axis(example) is None:
        return 0
    count = fixed_features(value)
    return count if count <= MAX_ROW_NUMBERS else 0


def _in_rows(
    factor: fx.Node, value: fx.Node, order: Sequence[Sequence[int]], rows: int, count: int
) -> RowElements | None:
    """The elements for a number of rows, each of `count` numbers."""
    axis = clean_row_axis(value.meta["val"])
    assert axis is not None
    shape = [size for place, size in enumerate(value.meta["val"].shape) if place != axis]
    positions = torch.arange(rows * count).view(rows, *shape).movedim(0, axis).contiguous()
    places = _run(factor, {value: positions}, rows)
    heads, summed, columns = (math.prod(places.shape[axis] for axis in axes) for axes in order)
    places = places.permute([axis for axes in order for axis in axes]).reshape(heads, summed, columns)
    if not heads or not columns or not summed or summed % rows:
        return None
    inner = summed // rows
    rows_first = bool((places[0, :inner, 0] // count == 0).all())
    ordered = (rows, inner) if rows_first else (inner, rows)
    parts = places.reshape(heads, *ordered, columns)
    parts = parts if rows_first else parts.transpose(1, 2)  # [heads, rows, inner, columns]
    begin = int(parts[0, 0, 0, 0])
    head, of_inner, along = (
        int(parts.select(place, 1)[0, 0, 0]) - begin if parts.shape[place] > 1 else default
        for place, default in ((0, 0), (2, 0), (3, 1))
    )
    regular = torch.full_like(parts, begin)
    for place, step in enumerate((head, count, of_inner, along)):
        regular += (torch.arange(parts.shape[place]) * step).view([-1 if other == place else 1 for other in range(4)])
    if not torch.equal(parts, regular):
        return None
    return RowElements(value, heads, inner, columns, (begin, head, of_inner, along), rows_first or inner == 1)


def _run(node: fx.Node, known: dict[fx.Node, Any], rows: int) -> Any:
    """A value of a graph of views, on numbers.

    known   values that have been computed; new ones are added
    """
    if node not in known:
        if node.op == "placeholder" and not isinstance(node.meta.get("val"), Tensor):
            known[node] = rows
        else:
            target: Any = node.target
            known[node] = target(
                *fx.node.map_arg(arguments(node), lambda source: _run(source, known, rows)),
                **fx.node.map_arg(node.kwargs, lambda source: _run(source, known, rows)),
            )
    return known[node]
