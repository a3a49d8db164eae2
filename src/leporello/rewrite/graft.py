"""Grafting: trace a plain torch function of some of a Loop's values, and append its graph to the Loop's own.

`with_loss` and `sample` add a loss and the choice of a token to a Loop in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import copied, placeholders
from leporello.loop.graph_cleanup import tidy


def trace_function(
    function: Callable[..., Any], values: Sequence[Tensor], family: FakeTensorFamily
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph of function(rows, *values), and the constant tensors it refers to.

    values   fake tensors of the family
    """
    with family.active():
        module = make_fx(function)(family.rows, *values)
    graph, _ = copied(module.graph)
    return graph, tidy(graph, module, family)


def append_graph(draft: Draft, graph: fx.Graph, values: Sequence[fx.Node]) -> list[fx.Node]:
    """Append a traced graph to a draft's, and return the nodes of its results.

    values   nodes of the draft that are the function's arguments
    """
    copies = dict(zip(placeholders(graph), [draft.rows, *values], strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            copies[node] = draft.graph.node_copy(node, copies.__getitem__)
    results: Any = graph.output_node().args[0]
    return [copies[node] for node in (results if isinstance(results, (tuple, list)) else [results])]
