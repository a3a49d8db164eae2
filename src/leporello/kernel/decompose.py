"""Composite operators as the few that kernels cover: by rules of our own, else by torch's decompositions, one by one.

A value keeps its label and the line of the user's code. An operator that no rule fits stays, and lowering refuses it by
name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

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
    graph = replaced(graph, family, _rule)
    graph = separate_batch_axis(graph, family)
    return replaced(graph, family, _rule)


Rule = Callable[[fx.Node], Callable[..., Any] | None]


def replaced(graph: fx.Graph, family: FakeTensorFamily, rule: Rule) -> fx.Graph:
    """A copy of a graph in which every operator that has a rule is replaced, and then those that the rules have added.

    graph, family   as for `decomposed`
    rule            for an operator, a function that computes it from others on its arguments; None where it stays
    """
    graph, _ = copied(graph)
    next(iter(graph.nodes)).meta.setdefault("val", family.rows)
    pending = [node for node in graph.nodes if node.op == "call_function"]
    while pending:
        node = pending.pop(0)
        function = rule(node)
        if function is not None:
            pending[:0] = _replace(graph, node, function, family)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def _rule(node: fx.Node) -> Callable[..., Any] | None:
    """What a kernel needs: None where no rule is needed or known.

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
    with graph.inserting_before(node):
        computed = _recorded(graph, node, leaves, rule, family)
        if computed is None:
            inner = _traced(node, leaves, rule, family)
            if inner is None:
                return []
            computed = _copied(graph, inner, leaves, family)
    added, result = computed
    for copy in added:
        copy.meta["line"] = node.meta.get("line")
        copy.meta["origin"] = node.meta.get("origin") or short(node)
    if isinstance(result, (list, tuple)):
        for user in list(node.users):
            part = result[user.args[1]]  # type: ignore[index]
            if part is None:
                continue
            user.replace_all_uses_with(part)
            _copy_label(part, user)
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(result)
        _copy_label(result, node)
    if not node.users:
        graph.erase_node(node)
    return added


# ---- by running the rule


class _NotRecorded(Exception):
    """An operator reads a size that is a symbol, writes in place, or reads a tensor of the rule's own."""


class _Recorder(TorchDispatchMode):
    """Adds the operators that run under it to a graph, at its point of insertion.

    nodes   of tensors, by id; `held` keeps the tensors, so that no id is used twice
    added   the new nodes, in order
    """

    def __init__(self, graph: fx.Graph, nodes: dict[int, fx.Node]) -> None:
        super().__init__()
        self.graph, self.nodes = graph, nodes
        self.held: list[torch.Tensor] = []
        self.added: list[fx.Node] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        options = options or {}
        if function._schema.is_mutable:
            raise _NotRecorded
        if function._can_decompose():
            with self:
                return function.decompose(*args, **options)
        of_graph = pytree.tree_map(self.node_of, (args, options))
        value = function(*args, **options)
        node = self.graph.call_function(function, *of_graph)
        node.meta["val"] = value
        self.added.append(node)
        if isinstance(value, torch.Tensor):
            self._hold(value, node)
        else:
            for index, part in enumerate(value):
                item = self.graph.call_function(operator.getitem, (node, index))
                item.meta["val"] = part
                self.added.append(item)
                self._hold(part, item)
        return value

    def node_of(self, value: Any) -> Any:
        """The node of a tensor; other arguments as they are."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self.nodes:
                raise _NotRecorded
            return self.nodes[id(value)]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _NotRecorded
        return value

    def _hold(self, value: torch.Tensor, node: fx.Node) -> None:
        self.nodes[id(value)] = node
        self.held.append(value)


def _recorded(
    graph: fx.Graph, node: fx.Node, leaves: list[fx.Node], rule: Callable[..., Any], family: FakeTensorFamily
) -> tuple[list[fx.Node], Any] | None:
    """Add what a rule computes of an operator's arguments to a graph; returns the new nodes, and those of its results.

    None, and nothing is added, where that is not as simple: then a trace may do it, which takes several times as long.

    leaves   the nodes among the operator's arguments
    """
    values = [leaf.meta["val"] for leaf in leaves]
    if family.lengths or not all(isinstance(value, torch.Tensor) for value in values):
        return None
    of_leaf: dict[fx.Node, torch.Tensor] = {}
    nodes: dict[int, fx.Node] = {}
    for leaf, value in zip(leaves, values, strict=True):
        of_leaf[leaf] = value if id(value) not in nodes else value.view_as(value)  # each leaf has a tensor of its own
        nodes[id(of_leaf[leaf])] = leaf
    recorder = _Recorder(graph, nodes)
    args, options = fx.map_arg((node.args, node.kwargs), of_leaf.__getitem__)
    try:
        with family.active(), family.no_new_guards(), torch.no_grad(), recorder:
            results = rule(*map(_mutable, args), **options)
        return recorder.added, pytree.tree_map(recorder.node_of, results)
    except Exception:
        for added in reversed(recorder.added):
            graph.erase_node(added)
        return None


# ---- by a trace of the rule


def _copied(
    graph: fx.Graph, inner: fx.Graph, leaves: list[fx.Node], family: FakeTensorFamily
) -> tuple[list[fx.Node], Any]:
    """Copy the graph of a rule into another, whose nodes `leaves` are its placeholders; returns as `_recorded`."""
    copies: dict[fx.Node, Any] = dict(
        zip([place for place in inner.nodes if place.op == "placeholder"], leaves, strict=True)
    )
    added: list[fx.Node] = []
    for operator_node in inner.nodes:
        if operator_node.op == "call_function" and not isinstance(operator_node.target, type):
            args, options = fx.map_arg((operator_node.args, operator_node.kwargs), copies.__getitem__)
            copy = call(graph, family, operator_node.target, *args, **options)
            copies[operator_node] = copy
            added.append(copy)
    result: Any = inner.output_node().args[0]
    if isinstance(result, fx.Node) and isinstance(result.target, type):
        result = result.args if len(result.args) > 1 else result.args[0]  # several results in a named tuple
    return added, fx.map_arg(result, copies.__getitem__)


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
