"""The rewrite `tabulate`: the product of a looked-up vector with an invariant is looked up itself, in a table of all
such products that is computed once a call.

    linear(embedding(x, E), U, b)  =  embedding(x, linear(E, U, b))
    linear(one_hot(x), U, b)       =  embedding(x, U.T + b)

The first is worth it where the table has fewer entries than are looked up in a call; the second always. An entry is one
vector of a table, E[i].
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

MAX_TABLE_NUMBERS = 1 << 24  # larger tables are not made
CASTS = {aten._to_copy.default}


def tabulate(loop: Loop, *, numbers: int, rows: int, largest: int = MAX_TABLE_NUMBERS) -> Loop:
    """The Loop with a lookup instead of each such product.

    numbers   indices are in 0 to numbers - 1. A one-hot vector with fewer elements is left as it is: for an index
              beyond them it is zero, where a lookup would fail
    rows      the most entries of a table E whose products are tabulated; one-hot vectors have no such limit
    largest   tables of more elements are not made
    """
    draft = Draft(loop)
    kinds = classes(loop)
    fixed = {draft.copies[node] for node, kind in kinds.items() if kind is ValueClass.FIXED}
    for node in [node for node in draft.graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]:
        *bias, left, right = arguments(node)
        plain = not node.kwargs and right in fixed and all(term in fixed for term in bias)
        row = _lookup_of(left, fixed) if plain else None
        if row is None or right.meta["val"].shape[1] * row.count > largest:
            continue
        if row.count < numbers if row.table is None else row.count > rows:
            continue
        with draft.before(node):
            draft.replace(node, row.in_table(draft, _table(draft, row, bias, right)))
    return draft.close()


class _Lookup:
    """A vector per row that is looked up in a table, or is one-hot.

    count    entries of the table, or elements of the one-hot vector
    index    of the entry, [rows]
    table    None for one-hot vectors
    lookup   the operator that looks it up; None for one-hot vectors
    """

    def __init__(self, count: int, index: fx.Node, table: fx.Node | None, lookup: fx.Node | None) -> None:
        self.count, self.index, self.table, self.lookup = count, index, table, lookup

    def in_table(self, draft: Draft, table: fx.Node) -> fx.Node:
        """The entry of the same index in another table: adds the lookup to the draft."""
        if self.lookup is None:
            return draft.call(aten.embedding.default, table, self.index)
        lookup: Any = self.lookup.target
        return draft.call(lookup, table, *arguments(self.lookup)[1:], **self.lookup.kwargs)


def _table(draft: Draft, row: _Lookup, bias: list[fx.Node], right: fx.Node) -> fx.Node:
    """The table of the products of all entries with the matrix on the right, plus the bias.

    bias   one node, or none
    """
    if row.table is None:
        return draft.call(aten.add.Tensor, right, *bias) if bias else right
    if bias:
        return draft.call(aten.addmm.default, *bias, row.table, right)
    return draft.call(aten.mm.default, row.table, right)


def _lookup_of(left: fx.Node, fixed: set[fx.Node]) -> _Lookup | None:
    """How a factor is looked up; None if it is computed otherwise."""
    if left.target in (aten.embedding.default, aten.index.Tensor):
        table, index = arguments(left)[:2]
        if left.target is aten.index.Tensor:
            index = index[0] if len(index) == 1 else None
        is_integer = isinstance(index, fx.Node) and index.meta["val"].dtype == torch.int64
        if table in fixed and is_integer and table.meta["val"].dim() == 2 and index.meta["val"].dim() == 1:
            return _Lookup(table.meta["val"].shape[0], index, table, left)
        return None
    return _one_hot(left)


def _one_hot(node: fx.Node) -> _Lookup | None:
    """The lookup that a one-hot vector stands for; None if a value is no such vector.

    It is recognised as the comparison of an index with 0, 1, 2, ..., cast to the dtype of the product.
    """
    while node.target in CASTS:
        node = arguments(node)[0]
    if node.target is not aten.eq.Tensor:
        return None
    for index, positions in (arguments(node), arguments(node)[::-1]):
        if _is_arange(positions) and _is_index_column(index):
            return _Lookup(positions.meta["val"].shape[0], arguments(index)[0], None, None)
    return None


def _is_arange(node: Any) -> bool:
    """Whether a value is 0, 1, 2, ..."""
    return isinstance(node, fx.Node) and node.target is aten.arange.default


def _is_index_column(node: Any) -> bool:
    """Whether a value is indices [rows], unsqueezed to [rows, 1]."""
    if not isinstance(node, fx.Node) or node.target is not aten.unsqueeze.default:
        return False
    index = arguments(node)[0].meta["val"]
    return index.dim() == 1 and index.dtype == torch.int64 and arguments(node)[1] in (1, -1)
