"""Products of rows with a large matrix, found in a stage that runs all steps at once.

Knows graphs and ATen's operators; knows nothing of how they are computed.
"""

from __future__ import annotations

import torch
from torch import fx

from leporello.engine.cpu.multiply import Multiply, is_faster
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments
from leporello.rewrite.leave_out import is_table

aten = torch.ops.aten

LARGE = 1 << 15  # numbers of a matrix; for smaller ones, what a call costs is too much of it


def multiplied(graph: fx.Graph) -> fx.Graph:
    """The graph, in which such products are made by a kernel where that is faster."""
    for node in list(graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and is_faster() and _fits(node):
            inner, outer = arguments(node)[-1].meta["val"].shape
            node.target = Multiply(inner, outer, node.meta["val"].dtype)
    return graph


def _fits(node: fx.Node) -> bool:
    """Single precision, rows on the left, and all else the same for every row."""
    *bias, value, matrix = (given for given in arguments(node))
    others = [given.meta["val"] for given in (*bias, matrix)]
    if node.kwargs or not is_table(value) or any(map(has_rows, others)):
        return False
    alike = {given.dtype for given in (value.meta["val"], *others)} == {torch.float32}
    return (
        alike and others[-1].numel() >= LARGE and all(tuple(own.shape) == (others[-1].shape[1],) for own in others[:-1])
    )
