"""The rewrite `own_totals`: equal outputs that are sums over rows become a sum each, as gradients of two added biases.

Gradients must not share memory. Where sums have a kernel, it writes a result twice for less than a copy costs.
"""

from __future__ import annotations

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import is_view

aten = torch.ops.aten


def own_totals(loop: Loop) -> Loop | None:
    """The Loop with such sums of their own; None where all its outputs differ."""
    draft = Draft(loop)
    seen: set[fx.Node] = set()
    changed = False
    for index, (port, node) in enumerate(draft.outputs):
        chain = [node]
        while is_view(chain[-1]):
            chain.append(chain[-1].all_input_nodes[0])
        if port.kind == "total" and chain[-1] in seen and chain[-1].target is aten.sum.dim_IntList:
            draft.outputs[index] = (port, _again(draft, chain))
            changed = True
        seen.add(chain[-1])
    return draft.close() if changed else None


def _again(draft: Draft, chain: list[fx.Node]) -> fx.Node:
    """A chain of views of a sum computed once more, at the end of the graph; the result comes first in it."""
    copies: dict[fx.Node, fx.Node] = {}
    for node in reversed(chain):
        args = [
            copies.get(argument, argument) if isinstance(argument, fx.Node) else argument
            for argument in arguments(node)
        ]
        copies[node] = draft.call(node.target, *args, **node.kwargs)  # type: ignore[arg-type]
    return copies[chain[0]]
