"""Sums over all rows, found in a stage that runs all steps at once, and put together into one call.

Knows graphs and ATen's operators; knows nothing of how the sums are computed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.cpu.totals import totals
from leporello.loop.family import clean_row_axis, has_rows
from leporello.loop.graph import arguments, copied

aten = torch.ops.aten

REALS = (torch.float32, torch.float64)


def gathered(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which sums over rows are one call, where there is a product among them."""
    graph, _ = copied(graph)
    found = {node: pair for node in graph.nodes if (pair := _pair(node)) is not None}
    for dtype in REALS:
        own = {node: pair for node, pair in found.items() if node.meta["val"].dtype == dtype}
        if any(second is not None for _, second in own.values()):
            _together(graph, own)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def _together(graph: fx.Graph, sums: dict[fx.Node, tuple[fx.Node, fx.Node | None]]) -> None:
    values = list(dict.fromkeys(value for pair in sums.values() for value in pair if value is not None))
    form = tuple(
        (values.index(first), -1 if second is None else values.index(second), _columns(first), _columns(second))
        for first, second in sums.values()
    )
    with graph.inserting_before(graph.output_node()):
        made = graph.call_function(totals, (form, *values))
        for place, node in enumerate(sums):
            own = graph.call_function(operator.getitem, (made, place))
            own.meta.update(node.meta)
            node.replace_all_uses_with(own)


def _pair(node: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """Of a sum over rows that the stage gives out and does not read itself: what is multiplied, or what is summed."""
    if node.op != "call_function" or any(user.op != "output" for user in node.users):
        return None
    if node.target is aten.sum.dim_IntList:
        first, axes, *kept = arguments(node)
        whole = list(axes) == [0] and kept == [True] and not node.kwargs
        return (first, None) if whole and _is_table(first) else None
    if node.target is aten.mm.default:
        turned, second = arguments(node)
        if turned.target is aten.t.default and _is_table(arguments(turned)[0]) and _is_table(second):
            return arguments(turned)[0], second
    return None


def _is_table(node: Any) -> bool:
    """Rows by numbers of a type that kernels compute with."""
    value = node.meta["val"]
    plain = isinstance(value, Tensor) and value.dim() == 2 and value.dtype in REALS
    return plain and has_rows(value) and clean_row_axis(value) == 0


def _columns(node: fx.Node | None) -> int:
    return 1 if node is None else int(node.meta["val"].shape[1])
