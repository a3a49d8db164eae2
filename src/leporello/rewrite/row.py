"""`row_of`: a Loop's step as a function of one row, spelt so that torch's vmap has a rule for each of its operators.

Knows operators that torch maps wrongly or not at all, and what to write instead; knows nothing of derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.graph import copied, stop
from leporello.loop.loop import Loop

aten = torch.ops.aten


def _slice_scatter(x: Tensor, part: Tensor, axis: int, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    end = None if end is None else min(end, x.shape[axis])  # an end beyond all sizes overflows under vmap
    return aten.slice_scatter.default(x, part, axis, start, end, step)


def _unfold(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    axis = axis % x.dim()
    starts = range(0, x.shape[axis] - size + 1, step)
    return torch.stack([x.narrow(axis, start, size).movedim(axis, -1) for start in starts], axis)


SPELT: dict[Any, Callable[..., Any]] = {
    stop: torch.Tensor.detach,
    aten.fill.Tensor: lambda x, value: value.to(x.dtype).expand_as(x),
    aten.slice_scatter.default: _slice_scatter,
    aten.unfold.default: _unfold,
    aten._prelu_kernel.default: lambda x, weight: torch.where(x > 0, x, weight * x),
}


def row_of(loop: Loop) -> Callable[..., Any]:
    """The step as a function of the number of rows and its inputs."""
    graph, _ = copied(loop.graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = SPELT.get(node.target, node.target)
    return fx.GraphModule({}, graph).forward
