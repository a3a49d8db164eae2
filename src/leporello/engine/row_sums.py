"""Sums over all rows of a window in the graph of an at-once stage: which results are some, and of what.

Gradients of matrices and biases consist of them. A target computes several in one call of a function of its own;
`RowSum` says what it needs to know of each, and `call_together` puts the call in the place of the sums.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from leporello.engine.row_elements import MAX_ELEMENTS, fixed_features, row_elements, same_elements
from leporello.loop.graph import arguments
from leporello.rewrite.skip_padding import masked_row_sum, row_sum_operands

aten = torch.ops.aten


class Spread(NamedTuple):
    """How a sum reads rows of values that have several axes, in elements from the beginning of a row.

    heads           sums of this kind side by side: the result is [heads, m, n]
    inner           elements of a row that are summed too
    first, second   of each value: where it begins, and the distances along heads, inner and columns
    """

    heads: int
    inner: int
    first: tuple[int, int, int, int]
    second: tuple[int, int, int, int]


class RowSum(NamedTuple):
    """first.t() @ second, or the sum of `first`, over rows; `past` is the mask of rows that are skipped.

    m, n     columns of both; n is 1 without a second
    spread   how rows with several axes are read; None where the values are matrices
    """

    first: fx.Node
    second: fx.Node | None
    past: fx.Node | None
    m: int
    n: int
    spread: Spread | None = None


def is_result_alone(node: fx.Node) -> bool:
    """Whether no other operator of the graph reads a result."""
    return all(user.op == "output" for user in node.users)


def row_sum(node: fx.Node, dtypes: Collection[torch.dtype]) -> RowSum | None:
    """The operands of a sum over rows of matrices, if that is what a result is.

    None if not, where another operator reads the sum, and where an operand has no columns or none of these dtypes.
    """
    if not is_result_alone(node):
        return None
    if node.target is masked_row_sum:
        first, second, past = arguments(node)
    else:
        first, second = row_sum_operands(node) or (None, None)
        past = None
    values = [value for value in (first, second) if value is not None]
    fixed = all(isinstance(value.meta["val"].shape[1], int) for value in values)
    supported = fixed and all(value.meta["val"].dtype in dtypes and columns_of(value) for value in values)
    return RowSum(first, second, past, columns_of(first), columns_of(second)) if values and supported else None


def sum_of_elements(node: fx.Node, dtypes: Collection[torch.dtype]) -> RowSum | None:
    """The operands of a sum over rows of values with several axes, each of whose axes may be summed or be heads.

    None for other results, and where another operator reads the sum.
    """
    if node.op != "call_function" or not is_result_alone(node):
        return None
    if node.meta["val"].dtype not in dtypes:
        return None
    if node.target in (aten.sum.default, aten.sum.dim_IntList) and not node.kwargs:
        return _sum_over_axes(node)
    orders = FACTOR_AXES.get(node.target)
    if orders is None:
        return None
    one, other = (row_elements(factor, order) for factor, order in zip(arguments(node), orders, strict=True))
    if one is None or other is None or not same_elements(one, other) or one.inner > MAX_ELEMENTS:
        return None
    spread = Spread(one.heads, one.inner, one.steps, other.steps)
    return RowSum(one.value, other.value, None, one.columns, other.columns, spread)


# Of the two factors of a product: axes of heads, of what is summed, and of columns.
FACTOR_AXES: dict[Any, tuple[tuple[tuple[int, ...], ...], ...]] = {
    aten.mm.default: (((), (1,), (0,)), ((), (0,), (1,))),
    aten.bmm.default: (((0,), (2,), (1,)), ((0,), (1,), (2,))),
}


def _sum_over_axes(node: fx.Node) -> RowSum | None:
    """A sum over rows, and maybe over other axes."""
    value, *rest = arguments(node)
    if value.meta["val"].dtype != node.meta["val"].dtype:
        return None
    count = value.meta["val"].dim()
    summed = sorted({axis % count for axis in rest[0]} if rest and rest[0] else range(count))
    kept = [axis for axis in range(count) if axis not in summed]
    found = row_elements(value, ((), summed, kept))
    if found is None or found.inner > MAX_ELEMENTS:
        return None
    if found.inner == 1 and found.steps[3] == 1 and fixed_features(found.value) == found.columns:
        return RowSum(found.value, None, None, found.columns, 1)
    return RowSum(found.value, None, None, found.columns, 1, Spread(1, found.inner, found.steps, (0, 0, 0, 1)))


def call_together(
    graph: fx.Graph,
    sums: Iterable[fx.Node],
    function: Callable[..., Sequence[Tensor]],
    values: Sequence[fx.Node],
) -> None:
    """Replace sums by one call of a function of these values that returns all of them, in the graph itself."""
    with graph.inserting_before(graph.output_node()):
        together = graph.call_function(function, tuple(values))
        for index, node in enumerate(sums):
            part = graph.call_function(operator.getitem, (together, index))
            part.meta.update(node.meta)
            node.replace_all_uses_with(part)


def columns_of(node: fx.Node | None) -> int:
    """The columns of a matrix; 1 for a second factor that does not exist."""
    return 1 if node is None else int(node.meta["val"].shape[1])
