"""Composite operators as the few that kernels know: rules of our own, else torch's decompositions, one by one.

Knows graphs; a value keeps its name, its label and its line. An operator that nothing fits stays, and is refused by
name later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from leporello.kernel.decomposition_rules import COMPOSITES, CONVOLUTIONS
from leporello.kernel.expressions import COVERED
from leporello.kernel.fx_nodes import short
from leporello.kernel.scatter_and_sort import SCATTERING
from leporello.kernel.separate_batch_axis import rows_apart
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import call, copied

OWN: dict[str, Callable[[fx.Node], Callable[..., Any] | None]] = {**COMPOSITES, **SCATTERING, **CONVOLUTIONS}


def decomposed(graph: fx.Graph, family: FakeTensorFamily) -> fx.Graph:
    """A copy of a graph in which every operator that can be is made of those that kernels cover."""
    graph, _ = copied(graph)
    next(iter(graph.nodes)).meta.setdefault("val", family.rows)
    _replace_all(graph, family)
    graph = rows_apart(graph, family)
    _replace_all(graph, family)
    return graph


def _replace_all(graph: fx.Graph, family: FakeTensorFamily) -> None:
    waiting = [node for node in graph.nodes if node.op == "call_function"]
    while waiting:
        node = waiting.pop(0)
        rule = _rule(node)
        if rule is not None:
            waiting[:0] = _replaced(graph, node, rule, family)
    graph.eliminate_dead_code()
    graph.lint()


def _rule(node: fx.Node) -> Callable[..., Any] | None:
    name = short(node)
    own = OWN[name](node) if name in OWN else None
    if own is not None or name in COVERED:
        return own
    target: Any = node.target
    return decomposition_table.get(target)


def _replaced(graph: fx.Graph, node: fx.Node, rule: Callable[..., Any], family: FakeTensorFamily) -> list[fx.Node]:
    """Put what an operator is made of in its place; the new operators."""
    leaves = list(node.all_input_nodes)
    inner = _traced(node, leaves, rule, family)
    if inner is None:
        return []
    copies: dict[fx.Node, Any] = dict(
        zip([place for place in inner.nodes if place.op == "placeholder"], leaves, strict=True)
    )
    made: list[fx.Node] = []
    with graph.inserting_before(node):
        for own in inner.nodes:
            if own.op == "call_function" and not isinstance(own.target, type):
                args, options = fx.map_arg((own.args, own.kwargs), copies.__getitem__)
                copies[own] = call(graph, family, own.target, *args, **options)
                copies[own].meta["line"] = node.meta.get("line")
                copies[own].meta["origin"] = node.meta.get("origin") or short(node)
                made.append(copies[own])
    given: Any = inner.output_node().args[0]
    if isinstance(given, fx.Node) and isinstance(given.target, type):
        given = given.args if len(given.args) > 1 else given.args[0]  # several results in a tuple with names
    if isinstance(given, (list, tuple)):
        for user in list(node.users):
            part = given[user.args[1]]  # type: ignore[index]
            if part is None:
                continue
            user.replace_all_uses_with(copies[part])
            _labelled(copies[part], user)
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(copies[given])
        _labelled(copies[given], node)
    if not node.users:
        graph.erase_node(node)
    return made


def _traced(
    node: fx.Node, leaves: list[fx.Node], rule: Callable[..., Any], family: FakeTensorFamily
) -> fx.Graph | None:
    """What a rule does with an operator's arguments; None if it does not fit, decides by rows, or writes."""
    order = {leaf: index for index, leaf in enumerate(leaves)}

    def of_leaves(*values: Any) -> Any:
        args, options = fx.map_arg((node.args, node.kwargs), lambda leaf: values[order[leaf]])
        return rule(*map(_own, args), **options)

    try:
        with family.active(), family.no_new_guards(), torch.no_grad():
            inner = make_fx(dispatch_functionalize(of_leaves))(*(leaf.meta["val"] for leaf in leaves)).graph
    except Exception:
        return None
    writes = any(getattr(getattr(own.target, "_schema", None), "is_mutable", False) for own in inner.nodes)
    return None if writes or any(own.op == "get_attr" for own in inner.nodes) else inner


def _own(argument: Any) -> Any:
    """An argument that may be changed: lists in graphs may not."""
    return list(argument) if isinstance(argument, list) else argument


def _labelled(new: fx.Node, old: fx.Node) -> None:
    if old.meta.get("label") and not new.meta.get("label"):
        new.meta["label"] = old.meta["label"]
