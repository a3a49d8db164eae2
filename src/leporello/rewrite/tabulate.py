"""The rewrite `tabulate`: the product of a looked-up row with an invariant becomes a row of a table, made once a call.

    linear(embedding(x, E), U, b)  =  embedding(x, linear(E, U, b))
    linear(one_hot(x), U, b)       =  embedding(x, U.T + b)

The first is worth it where the table has fewer rows than rows are looked up; the second always. Knows products and
lookups; knows nothing of what the numbers stand for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import ValueClass, classes

aten = torch.ops.aten

LARGEST = 1 << 24  # numbers of a table
CASTS = {aten._to_copy.default}


def tabulate(loop: Loop, *, numbers: int, rows: int, largest: int = LARGEST) -> Loop:
    """The loop with a lookup in the place of each such product.

    numbers   what is looked up lies in 0 to numbers - 1: a one-hot row of fewer places is left as it is
    rows      tables that take a product to make have at most so many rows
    largest   tables of more numbers are not made
    """
    draft = Draft(loop)
    kinds = classes(loop)
    fixed = {draft.copies[node] for node, kind in kinds.items() if kind is ValueClass.FIXED}
    for node in [node for node in draft.graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]:
        *bias, left, right = arguments(node)
        plain = not node.kwargs and right in fixed and all(one in fixed for one in bias)
        row = _looked_up(left, fixed) if plain else None
        if row is None or right.meta["val"].shape[1] * row.count > largest:
            continue
        if row.count < numbers if row.table is None else row.count > rows:
            continue
        with draft.before(node):
            draft.replace(node, row.of(draft, _table(draft, row, bias, right)))
    return draft.close()


class _Row:
    """A row that is looked up.

    count   rows there are
    number  which one, [rows]
    table   where, None for one-hot rows
    lookup  the operator that does it
    """

    def __init__(self, count: int, number: fx.Node, table: fx.Node | None, lookup: fx.Node | None) -> None:
        self.count, self.number, self.table, self.lookup = count, number, table, lookup

    def of(self, draft: Draft, table: fx.Node) -> fx.Node:
        """The same row of another table."""
        if self.lookup is None:
            return draft.call(aten.embedding.default, table, self.number)
        lookup: Any = self.lookup.target
        return draft.call(lookup, table, *arguments(self.lookup)[1:], **self.lookup.kwargs)


def _table(draft: Draft, row: _Row, bias: list[fx.Node], right: fx.Node) -> fx.Node:
    if row.table is None:
        return draft.call(aten.add.Tensor, right, *bias) if bias else right
    if bias:
        return draft.call(aten.addmm.default, *bias, row.table, right)
    return draft.call(aten.mm.default, row.table, right)


def _looked_up(left: fx.Node, fixed: set[fx.Node]) -> _Row | None:
    """What a factor is looked up in, None if it is not."""
    if left.target in (aten.embedding.default, aten.index.Tensor):
        table, number = arguments(left)[:2]
        if left.target is aten.index.Tensor:
            number = number[0] if len(number) == 1 else None
        whole = isinstance(number, fx.Node) and number.meta["val"].dtype == torch.int64
        if table in fixed and whole and table.meta["val"].dim() == 2 and number.meta["val"].dim() == 1:
            return _Row(table.meta["val"].shape[0], number, table, left)
        return None
    return _one_hot(left)


def _one_hot(node: fx.Node) -> _Row | None:
    """A comparison of a number with 0, 1, 2, ..., cast to what is multiplied."""
    while node.target in CASTS:
        node = arguments(node)[0]
    if node.target is not aten.eq.Tensor:
        return None
    for number, counted in (arguments(node), arguments(node)[::-1]):
        if _counts(counted) and _spread(number):
            return _Row(counted.meta["val"].shape[0], arguments(number)[0], None, None)
    return None


def _counts(node: Any) -> bool:
    """0, 1, 2, ... in a row."""
    return isinstance(node, fx.Node) and node.target is aten.arange.default


def _spread(node: Any) -> bool:
    """Numbers [rows] as [rows, 1]."""
    if not isinstance(node, fx.Node) or node.target is not aten.unsqueeze.default:
        return False
    number = arguments(node)[0].meta["val"]
    return number.dim() == 1 and number.dtype == torch.int64 and arguments(node)[1] in (1, -1)
