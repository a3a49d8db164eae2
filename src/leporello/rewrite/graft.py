"""Grafting: a plain torch function of some of a loop's values, traced, and put behind the loop's own operators.

What `with_loss` and `sample` share. Knows graphs of rows; knows nothing of what the function computes.
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


def traced(
    function: Callable[..., Any], values: Sequence[Tensor], family: FakeTensorFamily
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph of function(rows, *values), and the tensors it holds beside its arguments.

    values   stand-ins of the family
    """
    with family.active():
        module = make_fx(function)(family.rows, *values)
    graph, _ = copied(module.graph)
    return graph, tidy(graph, module, family)


def graft(draft: Draft, graph: fx.Graph, values: Sequence[fx.Node]) -> list[fx.Node]:
    """Put a traced graph behind the draft's own operators; the nodes of its results.

    values   nodes of the draft that stand for the function's arguments
    """
    copies = dict(zip(placeholders(graph), [draft.rows, *values], strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            copies[node] = draft.graph.node_copy(node, copies.__getitem__)
    found: Any = graph.output_node().args[0]
    return [copies[node] for node in (found if isinstance(found, (tuple, list)) else [found])]
