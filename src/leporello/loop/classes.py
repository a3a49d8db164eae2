"""Which values of a step vary with time, and which carry rows: the classes that decide where a value is computed.

Knows a graph and its ports; knows nothing of stages.
"""

from __future__ import annotations

import operator
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from leporello.loop.family import has_rows

if TYPE_CHECKING:
    from leporello.loop.loop import Loop

aten = torch.ops.aten


class Class(Enum):
    """How a value depends on time and rows."""

    COUNT = "a number made of the number of rows"
    FIXED = "made of invariants alone: once a call"
    TIMELESS = "one per row, the same at every step: once a call"
    VARYING = "one per row and step"
    REDUCED = "summed over rows: a part of a total"
    FINISHED = "made of totals: once a call, at the end"


# Operators that only look at a value another way, without making it smaller: never worth storing.
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.expand_as.default,
}


def is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in VIEWS


PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


def multiplies(node: fx.Node) -> bool:
    """Whether it is a product of matrices."""
    return node.op == "call_function" and node.target in PRODUCTS


def is_part(node: fx.Node) -> bool:
    """Whether it takes one of several results of the operator before it."""
    return node.op == "call_function" and node.target is operator.getitem


def classes(loop: Loop) -> dict[fx.Node, Class]:
    """The class of each value. A state that no step changes is timeless."""
    delays = loop.delays.values()
    kept = {leaving for entering, leaving in delays if entering is leaving}
    found: dict[fx.Node, Class] = {next(iter(loop.graph.nodes)): Class.COUNT}
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind == "invariant" and not port.rows:
            found[node] = Class.FIXED
        else:
            found[node] = Class.TIMELESS if port.kind == "invariant" or node in kept else Class.VARYING
    for node in loop.nodes:
        found[node] = _class(node, {found[source] for source in node.all_input_nodes})
    return found


def _class(node: fx.Node, sources: set[Class]) -> Class:
    value = node.meta["val"]
    if not isinstance(value, (Tensor, tuple, list)):
        return Class.COUNT
    rows = has_rows(value)
    if is_part(node) and sources == {Class.REDUCED}:
        return Class.REDUCED
    if Class.VARYING in sources:
        return Class.VARYING if rows else Class.REDUCED
    if sources & {Class.REDUCED, Class.FINISHED}:
        return Class.FINISHED
    if Class.TIMELESS in sources and not rows:
        return Class.REDUCED  # summed over rows, and over steps by whoever adds the totals
    return Class.TIMELESS if rows else Class.FIXED
