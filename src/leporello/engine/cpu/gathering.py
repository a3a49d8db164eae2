"""Sums over all rows, found in a stage that runs all steps at once, and put together into one call.

Knows graphs and ATen's operators; knows nothing of how the sums are computed.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import fx

from leporello.engine.cpu.totals import Totals
from leporello.loop.graph import arguments, copied, placeholders, results
from leporello.loop.stages import Stage
from leporello.rewrite.leave_out import summed, summed_pair

REALS = (torch.float32, torch.float64)
LARGE = 1024  # bytes in a row of a value whose sums are a part of their own


class Sum(NamedTuple):
    """first.t() @ second, or the sum of the first; past tells which rows are left out."""

    first: fx.Node
    second: fx.Node | None
    past: fx.Node | None


def gathered(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which sums over rows are one call, where there is a product among them."""
    graph, _ = copied(graph)
    alike: dict[tuple[torch.dtype, fx.Node | None], dict[fx.Node, Sum]] = {}
    for node in dict.fromkeys(results(graph)):
        one = _sum(node)
        if one is not None:
            alike.setdefault((node.meta["val"].dtype, one.past), {})[node] = one
    for own in alike.values():
        if any(one.second is not None for one in own.values()):
            _together(graph, own)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def nothing_else(graph: fx.Graph) -> tuple[Totals, list[fx.Node]] | None:
    """Of a graph that is one such call, of what it is given: the call, and what it reads, in its order."""
    calls = [node for node in graph.nodes if isinstance(node.target, Totals)]
    parts = [node for call in calls for node in call.users]
    if len(calls) != 1 or [arguments(node)[1] for node in results(graph) if node in parts] != list(range(len(parts))):
        return None
    reads = calls[0].all_input_nodes
    whole = len(results(graph)) == len(parts) and all(node.op == "placeholder" for node in reads)
    return (calls[0].target, reads) if whole else None


def in_turn(stage: Stage) -> list[Stage]:
    """A stage in parts, one after the other: the sums of each large value, so that its memory is free for the next."""
    made = results(stage.graph)
    groups: dict[fx.Node | None, list[int]] = {}
    for index, node in enumerate(made):
        one = _sum(node)
        read = one is not None and all(value is None or value.op == "placeholder" for value in one)
        first = one.first if one is not None and read and _row_bytes(one.first) >= LARGE else None
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


def _together(graph: fx.Graph, sums: dict[fx.Node, Sum]) -> None:
    """One call for sums of the same type that leave out the same rows."""
    values = list(dict.fromkeys(value for one in sums.values() for value in one[:2] if value is not None))
    form = tuple(
        (values.index(first), -1 if second is None else values.index(second), _columns(first), _columns(second))
        for first, second, _ in sums.values()
    )
    (past,) = {one.past for one in sums.values()}
    dtype = values[0].meta["val"].dtype
    with graph.inserting_before(graph.output_node()):
        made = graph.call_function(Totals(form, dtype, past is not None), (*values, *(() if past is None else (past,))))
        for place, node in enumerate(sums):
            own = graph.call_function(operator.getitem, (made, place))
            own.meta.update(node.meta)
            node.replace_all_uses_with(own)


def _sum(node: fx.Node) -> Sum | None:
    """A sum over rows that the stage gives out and does not read itself, of numbers that kernels compute with."""
    if any(user.op != "output" for user in node.users):
        return None
    if node.target is summed:
        first, second, past = arguments(node)
    else:
        first, second = summed_pair(node) or (None, None)
        past = None
    values = [value for value in (first, second) if value is not None]
    able = all(value.meta["val"].dtype in REALS and _columns(value) for value in values)
    return Sum(first, second, past) if values and able else None


def _row_bytes(node: fx.Node) -> int:
    return _columns(node) * node.meta["val"].dtype.itemsize


def _columns(node: fx.Node | None) -> int:
    return 1 if node is None else int(node.meta["val"].shape[1])
