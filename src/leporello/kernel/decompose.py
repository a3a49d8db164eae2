"""Composite operators as the few that kernels cover: by rules of our own, else by torch's decompositions, one by one.

A value keeps its label and the line of the user's code. An operator that no rule fits stays, and lowering refuses it by
name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table

from leporello.kernel.decomposition_rules import COMPOSITES, CONVOLUTIONS, DecompositionRule
from leporello.kernel.expressions import COVERED
from leporello.kernel.lowering_context import short
from leporello.kernel.scatter_and_sort import SCATTER_AND_SORT
from leporello.kernel.separate_batch_axis import separate_batch_axis
from leporello.loop.fake_tensors import FakeTensorFamily, writes_in_place
from leporello.loop.graph import call, copied

DECOMPOSITIONS: dict[str, DecompositionRule] = {**COMPOSITES, **CONVOLUTIONS, **SCATTER_AND_SORT}


def decomposed(graph: fx.Graph, family: FakeTensorFamily) -> fx.Graph:
    """A copy of a graph with composite operators replaced by those that kernels cover; others stay.

    graph    of a stage; its first placeholder is the number of rows
    family   the fake tensors with which the graph was traced: they give the shapes of new operators

    Operators are replaced before and after merged axes are split, since some rules fit only then.
    """
    graph, _ = copied(graph)
    next(iter(graph.nodes)).meta.setdefault("val", family.rows)
    _replace_all(graph, family)
    graph = separate_batch_axis(graph, family)
    _replace_all(graph, family)
    return graph


def _replace_all(graph: fx.Graph, family: FakeTensorFamily) -> None:
    """Replace, in the graph itself, every operator that has a rule; then those that the rules have added."""
    pending = [node for node in graph.nodes if node.op == "call_function"]
    while pending:
        node = pending.pop(0)
        rule = _rule(node)
        if rule is not None:
            pending[:0] = _replace(graph, node, rule, family)
    graph.eliminate_dead_code()
    graph.lint()


def _rule(node: fx.Node) -> Callable[..., Any] | None:
    """A function that computes an operator from others, on its arguments; None where none is needed or known.

    A rule of our own comes first, even for an operator that is covered (a bmm of two values with rows is no product of
    a kernel); torch's decomposition is for operators that are not covered.
    """
    name = short(node)
    function = DECOMPOSITIONS[name](node) if name in DECOMPOSITIONS else None
    if function is not None or name in COVERED:
        return function
    target: Any = node.target
    return decomposition_table.get(target)


def _replace(graph: fx.Graph, node: fx.Node, rule: Callable[..., Any], family: FakeTensorFamily) -> list[fx.Node]:
    """Replace an operator, in the graph itself, by what its rule computes; returns the new operators.

    None are returned, and the operator stays, where the rule cannot be traced. Of several results those that the rule
    gives as None stay with the old operator.
    """
    leaves = list(node.all_input_nodes)
    inner = _traced(node, leaves, rule, family)
    if inner is None:
        return []
    copies: dict[fx.Node, Any] = dict(
        zip([place for place in inner.nodes if place.op == "placeholder"], leaves, strict=True)
    )
    added: list[fx.Node] = []
    with graph.inserting_before(node):
        for operator in inner.nodes:
            if operator.op == "call_function" and not isinstance(operator.target, type):
                args, options = fx.map_arg((operator.args, operator.kwargs), copies.__getitem__)
                copy = call(graph, family, operator.target, *args, **options)
                copy.meta["line"] = node.meta.get("line")
                copy.meta["origin"] = node.meta.get("origin") or short(node)
                copies[operator] = copy
                added.append(copy)
    result: Any = inner.output_node().args[0]
    if isinstance(result, fx.Node) and isinstance(result.target, type):
        result = result.args if len(result.args) > 1 else result.args[0]  # several results in a named tuple
    if isinstance(result, (list, tuple)):
        for user in list(node.users):
            part = result[user.args[1]]  # type: ignore[index]
            if part is None:
                continue
            user.replace_all_uses_with(copies[part])
            _copy_label(copies[part], user)
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(copies[result])
        _copy_label(copies[result], node)
    if not node.users:
        graph.erase_node(node)
    return added


def _traced(
    node: fx.Node, leaves: list[fx.Node], rule: Callable[..., Any], family: FakeTensorFamily
) -> fx.Graph | None:
    """The graph of a rule applied to an operator's arguments, with a placeholder for each of `leaves`.

    None if the rule fails, branches on the number of rows, writes in place or holds a tensor of its own.

    leaves   the nodes among the operator's arguments
    """
    order = {leaf: index for index, leaf in enumerate(leaves)}

    def of_leaves(*values: Any) -> Any:
        args, options = fx.map_arg((node.args, node.kwargs), lambda leaf: values[order[leaf]])
        options = {name: family.with_symbols(value) for name, value in options.items()}
        return rule(*(_mutable(family.with_symbols(argument)) for argument in args), **options)

    try:
        with family.no_new_guards(), torch.no_grad():
            inner = family.graph_of(of_leaves, *(leaf.meta["val"] for leaf in leaves)).graph
    except Exception:
        return None
    return None if any(map(writes_in_place, inner.nodes)) or any(one.op == "get_attr" for one in inner.nodes) else inner


def _mutable(argument: Any) -> Any:
    """An argument that a rule may change: lists in graphs are immutable."""
    return list(argument) if isinstance(argument, list) else argument


def _copy_label(new: fx.Node, old: fx.Node) -> None:
    if old.meta.get("label") and not new.meta.get("label"):
        new.meta["label"] = old.meta["label"]
