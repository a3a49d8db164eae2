"""A graph as a Python function, spelt with torch's own functions where they cost less than an ATen overload's call.

Knows spellings; knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from leporello.loop.family import clean_row_axis
from leporello.loop.graph import copied, placeholders, results
from leporello.loop.stop import stop

aten = torch.ops.aten

# The same operators through torch's argument parser: about half a microsecond less a call.
SPELLING: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.neg.default: torch.neg,
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.addcmul.default: torch.addcmul,
    aten.split.Tensor: torch.Tensor.split,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.masked_fill.Scalar: torch.masked_fill,
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
    aten.relu.default: torch.relu,
    aten.exp.default: torch.exp,
    aten.log.default: torch.log,
    aten.sqrt.default: torch.sqrt,
    aten.rsub.Scalar: torch.rsub,
    aten.where.self: torch.where,
    aten.cat.default: torch.cat,
    aten.sum.dim_IntList: torch.sum,
    aten.scalar_tensor.default: torch.scalar_tensor,
    aten.t.default: torch.t,
    aten.view.default: torch.reshape,  # a value may lie in memory otherwise than its stand-in did
    aten._unsafe_view.default: torch.reshape,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.permute.default: torch.permute,
    aten.transpose.int: torch.transpose,
    stop: torch.Tensor.detach,
}


# Those of them that can write their result where they are told.
PLACING = {
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.neg,
    torch.mm,
    torch.addmm,
    torch.bmm,
    torch.addcmul,
    torch.tanh,
    torch.sigmoid,
    torch.exp,
    torch.sqrt,
    torch.where,
    torch.cat,
}


def function_of(graph: fx.Graph, placed: Sequence[int] = (), order: Sequence[int] | None = None) -> Callable[..., Any]:
    """The graph as a function of its placeholders; the result is the tuple of its results.

    placed   results that are written to memory the caller hands in, one more argument each, behind the others
    order    the placeholders in the order of the arguments
    """
    spelt, _ = copied(graph)
    for node in spelt.nodes:
        if node.op == "call_function":
            node.target = SPELLING.get(node.target, node.target)
        elif node.op == "placeholder":
            node.target = node.name  # an argument W would be w inside, where another value may have that name
    made, places = results(spelt), placeholders(spelt)
    if order is not None:
        places = [places[index] for index in order]
        for one, following in pairwise(places):
            one.append(following)
    last = places[-1]
    for index in placed:
        with spelt.inserting_after(last):
            last = spelt.placeholder(f"place_{index}")
        made[index].kwargs = {**made[index].kwargs, "out": last}
    return fx.GraphModule({}, spelt).forward


def placeable(graph: fx.Graph) -> list[int]:
    """The results of a graph that can be written to memory the caller hands in."""
    found: list[int] = []
    seen: set[fx.Node] = set()
    for index, node in enumerate(results(graph)):
        writes = SPELLING.get(node.target) in PLACING or getattr(node.target, "places", False)
        if writes and node not in seen and clean_row_axis(node.meta["val"]) == 0:
            found.append(index)
            seen.add(node)
    return found
