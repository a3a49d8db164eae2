"""fx graphs as we use them: copied, read and grown, with types that a checker understands.

Knows fx; knows nothing of loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from leporello.loop.family import Family


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The positional arguments of an operator."""
    return node.args


def results(graph: fx.Graph) -> list[fx.Node]:
    """What a graph gives."""
    given: Any = graph.output_node().args[0]
    return list(given)


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def copied(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A graph's copy, and each node's counterpart in it."""
    copy = fx.Graph()
    counterparts: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        counterparts[node] = copy.node_copy(node, counterparts.__getitem__)
    return copy, counterparts


def call(
    graph: fx.Graph, family: Family, target: Callable[..., Any], *args: Any, name: str | None = None, **options: Any
) -> fx.Node:
    """A new operator in a graph, with the shape of its value."""
    node = graph.create_node("call_function", target, args, options, name=name)
    values = fx.map_arg((args, options), lambda arg: arg.meta["val"])
    with family.active(), torch.no_grad():
        node.meta["val"] = target(*values[0], **values[1])
    return node
