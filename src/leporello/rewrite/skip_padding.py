"""The rewrite `leave_out`: sums over rows in the gradient of a masked Loop leave out the rows past their end.

A masked Loop gives out zeros past a row's end and holds its states, so what is summed there is zero anyway; and what
stands in the padding need not be cleaned for a sum that does not read it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import clean_row_axis, has_rows
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.port import Role
from leporello.loop.value_classes import is_view
from leporello.rewrite.prune import prune

aten = torch.ops.aten


def summed(first: Tensor, second: Tensor | None, past: Tensor) -> Tensor:
    """first.t() @ second, or the sum of the first where there is no second, over rows that are not past their end."""
    rows = first[~past]
    return rows.sum(0, keepdim=True) if second is None else rows.t() @ second[~past]


def leave_out(backward: Loop, keep: tuple[str, ...] = ()) -> Loop:
    """The gradient of a masked loop with shorter sums; any other loop as it is.

    keep   states whose last value is wanted
    """
    draft = Draft(backward)
    past = next((node for port, node in draft.inputs if port.reads_forward(Role.PAST)), None)
    if past is None:
        return backward
    for node in list(draft.graph.nodes):
        pair = summed_pair(node)
        if pair is not None:
            with draft.graph.inserting_before(node):
                own = draft.graph.call_function(summed, (*(_as_it_came(value, past) for value in pair), past))
            own.meta.update(node.meta)
            draft.replace(node, own)
    return prune(draft.close(), keep)


def summed_pair(node: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """Of a sum over rows: what is multiplied, or what is summed and None."""
    if node.op != "call_function":
        return None
    if node.target is aten.sum.dim_IntList:
        first, axes, *kept = arguments(node)
        whole = list(axes) == [0] and kept == [True] and not node.kwargs
        return (first, None) if whole and is_table(first) else None
    if node.target is aten.mm.default:
        turned, second = arguments(node)
        if turned.target is aten.t.default and is_table(arguments(turned)[0]) and is_table(second):
            return arguments(turned)[0], second
    return None


def is_table(node: Any) -> bool:
    """Rows by numbers."""
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.dim() == 2 and has_rows(value) and clean_row_axis(value) == 0


def _as_it_came(node: fx.Node | None, past: fx.Node) -> fx.Node | None:
    """A value before it was cleaned."""
    if node is None or node.target not in (aten.where.self, aten.masked_fill.Scalar):
        return node
    given = arguments(node)
    where, value = (given[0], given[2]) if node.target is aten.where.self else (given[1], given[0])
    while is_view(where):
        where = where.all_input_nodes[0]
    return value if where is past and _is_like(value, node) else node


def _is_like(value: Any, node: fx.Node) -> bool:
    """Whether a value has the form of another."""
    return isinstance(value, fx.Node) and all(
        getattr(value.meta["val"], of) == getattr(node.meta["val"], of) for of in ("shape", "dtype")
    )
