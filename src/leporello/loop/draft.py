"""`Draft`: a Loop opened for editing, with its graph and ports kept in agreement.

A rewrite opens one, adds inputs, operators and outputs, and closes it into a Loop again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import call, copied, placeholders
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.tracing.graph_cleanup import tidy


class Draft:
    """A copy of a Loop's graph that can be changed; the Loop stays as it is.

    inputs, outputs   pairs of port and node, in order; edit `outputs` freely, add inputs with `add_input`
    copies            for each node of the Loop its copy here
    rows              the placeholder for the number of rows
    """

    def __init__(self, loop: Loop) -> None:
        self.origin = loop
        self.graph, copies = copied(loop.graph)
        self.copies = copies
        self.family = loop.family
        self.rows = next(iter(self.graph.nodes))
        self.inputs = list(zip(loop.inputs, [copies[node] for node in loop.placeholders], strict=True))
        self.outputs = list(zip(loop.outputs, [copies[node] for node in loop.results], strict=True))
        self.graph.erase_node(self.graph.output_node())

    def input(self, kind: str, name: str) -> fx.Node:
        return next(node for port, node in self.inputs if (port.kind, port.name) == (kind, name))

    def output(self, kind: str, name: str) -> fx.Node:
        return next(node for port, node in self.outputs if (port.kind, port.name) == (kind, name))

    def set_output(self, kind: str, name: str, node: fx.Node) -> None:
        self.outputs = [(port, node if (port.kind, port.name) == (kind, name) else old) for port, old in self.outputs]

    def replace(self, node: fx.Node, instead: fx.Node) -> None:
        """Use another value wherever this one is used, as a result too.

        Only `instead` itself may go on reading the node. A node without readers is removed by `close`.
        """
        node.replace_all_uses_with(instead, delete_user_cb=lambda user: user is not instead)
        self.outputs = [(port, instead if old is node else old) for port, old in self.outputs]

    def add_input(self, port: Port) -> fx.Node:
        """Add an input behind the others, and return its placeholder."""
        last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
        with self.graph.inserting_after(last):
            node = self.graph.placeholder(port.name.replace(".", "_"))
        node.meta["val"] = self.family.tensor(port.shape, port.dtype, port.device, rows=port.rows)
        node.meta["label"] = port.name
        self.inputs.append((port, node))
        return node

    def call(self, target: Callable[..., Any], *args: Any, **options: Any) -> fx.Node:
        """Add an operator and return its node; it goes to the end of the graph, unless in a block of `before` or
        `after_inputs`."""
        return call(self.graph, self.family, target, *args, **options)

    def before(self, node: fx.Node) -> Any:
        """A context manager: operators are inserted in front of this node while its block runs."""
        return self.graph.inserting_before(node)

    def after_inputs(self) -> Any:
        """A context manager: operators are inserted in front of the first operator while its block runs."""
        last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
        return self.graph.inserting_before(last.next)

    def spread(self, node: fx.Node, like: fx.Node) -> fx.Node:
        """A value [rows] as [rows, 1, ...], with as many axes as `like`, so that it is broadcast over features."""
        for _ in range(like.meta["val"].dim() - 1):
            node = self.call(torch.ops.aten.unsqueeze.default, node, -1)
        return node

    def close(self, **changes: Any) -> Loop:
        """The edited Loop, without operators that no output depends on. The draft must not be used any more.

        changes   new values for other fields of the Loop
        """
        self.graph.output(tuple(node for _, node in self.outputs))
        self.graph.eliminate_dead_code()
        self.graph.lint()
        inputs, outputs = (tuple(port for port, _ in side) for side in (self.inputs, self.outputs))
        return replace(self.origin, graph=self.graph, inputs=inputs, outputs=outputs, **changes)


# ---- a traced function of some values, appended: `add_loss` adds a loss, `sample` the choice of a token


def trace_function(
    function: Callable[..., Any], values: Sequence[Tensor], family: FakeTensorFamily
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph of function(rows, *values), and by name the constant tensors in it, which are its last placeholders.

    values   fake tensors of the family
    """
    module = family.graph_of(function, family.rows, *values)
    graph, _ = copied(module.graph)
    return graph, tidy(graph, module, family)


def append_graph(draft: Draft, graph: fx.Graph, values: Sequence[fx.Node]) -> list[fx.Node]:
    """Append a traced graph without constants to a draft's, and return the nodes of its results.

    values   nodes of the draft that are the function's arguments, behind the number of rows
    """
    copies = dict(zip(placeholders(graph), [draft.rows, *values], strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            copies[node] = draft.graph.node_copy(node, copies.__getitem__)
    results: Any = graph.output_node().args[0]
    return [copies[node] for node in (results if isinstance(results, (tuple, list)) else [results])]
