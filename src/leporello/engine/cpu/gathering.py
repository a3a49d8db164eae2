"""Sums over all rows, found in a stage that runs all steps at once, and put together into one call.

Knows graphs and ATen's operators; knows nothing of how the sums are computed.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.cpu.totals import Totals
from leporello.loop.family import clean_row_axis, has_rows
from leporello.loop.graph import arguments, copied, placeholders, results
from leporello.loop.stages import Stage

aten = torch.ops.aten

REALS = (torch.float32, torch.float64)
LARGE = 1024  # bytes in a row of a value whose sums are a part of their own


def gathered(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which sums over rows are one call, where there is a product among them."""
    graph, _ = copied(graph)
    found = {node: pair for node in graph.nodes if (pair := _pair(node)) is not None}
    for dtype in REALS:
        own = {node: pair for node, pair in found.items() if node.meta["val"].dtype == dtype}
        if any(second is not None for _, second in own.values()):
            _together(graph, own, dtype)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def in_turn(stage: Stage) -> list[Stage]:
    """A stage in parts, one after the other: the sums of each large value, so that its memory is free for the next."""
    made = results(stage.graph)
    groups: dict[fx.Node | None, list[int]] = {}
    for index, node in enumerate(made):
        pair = _pair(node)
        read = pair is not None and all(value is None or value.op == "placeholder" for value in pair)
        first = pair[0] if pair is not None and read and _row_bytes(pair[0]) >= LARGE else None
        groups.setdefault(first, []).append(index)
    if len(groups) < 2 or stage.states:
        return [stage]
    return [_part(stage, indices) for indices in groups.values()]


def _part(stage: Stage, indices: list[int]) -> Stage:
    """Some of a stage's results."""
    graph, copies = copied(stage.graph)
    made = [copies[node] for node in results(stage.graph)]
    graph.output_node().args = (tuple(made[index] for index in indices),)
    graph.eliminate_dead_code()
    _, *places = placeholders(graph)
    kept = [index for index, place in enumerate(places) if place.users]
    for place in places:
        if not place.users:
            graph.erase_node(place)
    reads, writes = (tuple(of[index] for index in own) for of, own in ((stage.reads, kept), (stage.writes, indices)))
    return replace(stage, graph=graph, reads=reads, writes=writes)


def _together(graph: fx.Graph, sums: dict[fx.Node, tuple[fx.Node, fx.Node | None]], dtype: torch.dtype) -> None:
    """One call for sums of the same type."""
    values = list(dict.fromkeys(value for pair in sums.values() for value in pair if value is not None))
    form = tuple(
        (values.index(first), -1 if second is None else values.index(second), _columns(first), _columns(second))
        for first, second in sums.values()
    )
    with graph.inserting_before(graph.output_node()):
        made = graph.call_function(Totals(form, dtype), tuple(values))
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
    """Rows by one or more numbers of a type that kernels compute with."""
    value = node.meta["val"]
    plain = isinstance(value, Tensor) and value.dim() == 2 and value.dtype in REALS
    return plain and has_rows(value) and clean_row_axis(value) == 0 and value.shape[1] != 0


def _row_bytes(node: fx.Node) -> int:
    return _columns(node) * node.meta["val"].dtype.itemsize


def _columns(node: fx.Node | None) -> int:
    return 1 if node is None else int(node.meta["val"].shape[1])
