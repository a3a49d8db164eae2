"""The rewrite `skip_padding`: sums over rows in the gradient of a masked Loop skip the rows past their end.

A masked Loop's outputs are zero past a row's end and its states are held, so the terms of the padding are zero anyway.
A sum that skips them can read the padding as it came in: it needs no copy in which the padding is cleaned.
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
from leporello.loop.value_classes import is_matrix_product, is_view
from leporello.rewrite.prune import prune

aten = torch.ops.aten


def masked_row_sum(first: Tensor, second: Tensor | None, past: Tensor) -> Tensor:
    """first.t() @ second over the rows that are not past their end; without a second the sum of `first`, [1, features].

    first, second   [rows, features]
    past            [rows], true past a row's end
    """
    rows = first[~past]
    return rows.sum(0, keepdim=True) if second is None else rows.t() @ second[~past]


def skip_padding(backward: Loop, keep: tuple[str, ...] = (), *, products: bool = True) -> Loop:
    """The gradient of a masked Loop with shorter sums; any other Loop unchanged.

    keep       states whose last value is wanted
    products   whether products of matrices skip rows too; else only sums of a cleaned value that no product reads
    """
    draft = Draft(backward)
    past = next((node for port, node in draft.inputs if port.reads_forward(Role.PAST)), None)
    if past is None:
        return backward
    for node in list(draft.graph.nodes):
        operands = row_sum_operands(node)
        if operands is not None and (products or _is_cleaned_alone(operands, past)):
            with draft.graph.inserting_before(node):
                shorter = draft.graph.call_function(
                    masked_row_sum, (*(_before_cleaning(value, past) for value in operands), past)
                )
            shorter.meta.update(node.meta)
            draft.replace(node, shorter)
    return prune(draft.close(), keep)


def _is_cleaned_alone(operands: tuple[fx.Node, fx.Node | None], past: fx.Node) -> bool:
    """Whether a sum over rows is of a cleaned value that no product of matrices reads."""
    value, second = operands
    return second is None and _before_cleaning(value, past) is not value and not _is_multiplied(value)


def _is_multiplied(node: fx.Node) -> bool:
    """Whether a product of matrices reads a value, or a view of it."""
    return any(is_matrix_product(user) or (is_view(user) and _is_multiplied(user)) for user in node.users)


def row_sum_operands(node: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """Of a sum over rows its operands: (a, b) for a.t() @ b, (a, None) for a.sum(0, keepdim=True); else None."""
    if node.op != "call_function":
        return None
    if node.target is aten.sum.dim_IntList:
        first, axes, *keepdim = arguments(node)
        over_rows = list(axes) == [0] and keepdim == [True] and not node.kwargs
        return (first, None) if over_rows and is_row_matrix(first) else None
    if node.target is aten.mm.default:
        transposed, second = arguments(node)
        if transposed.target is aten.t.default and is_row_matrix(arguments(transposed)[0]) and is_row_matrix(second):
            return arguments(transposed)[0], second
    return None


def is_row_matrix(node: Any) -> bool:
    """Whether a value has shape [rows, features]."""
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.dim() == 2 and has_rows(value) and clean_row_axis(value) == 0


def _before_cleaning(node: fx.Node | None, past: fx.Node) -> fx.Node | None:
    """The value from which `mask` has cleaned the padding; the node itself where it was not cleaned."""
    if node is None or node.target not in (aten.where.self, aten.masked_fill.Scalar):
        return node
    operands = arguments(node)
    where, value = (operands[0], operands[2]) if node.target is aten.where.self else (operands[1], operands[0])
    while is_view(where):
        where = where.all_input_nodes[0]
    return value if where is past and _is_like(value, node) else node


def _is_like(value: Any, node: fx.Node) -> bool:
    """Whether a value has the shape and dtype of another."""
    return isinstance(value, fx.Node) and all(
        getattr(value.meta["val"], of) == getattr(node.meta["val"], of) for of in ("shape", "dtype")
    )
