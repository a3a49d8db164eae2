"""The rewrite `merge`: what a step computes twice it computes once, and what it turns twice it does not turn.

Two values are one if the same operator makes them of the same values; random numbers are inputs, so every operator is a
function of what it reads.
"""

from __future__ import annotations

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import key_of
from leporello.loop.loop import Loop

turn = torch.ops.aten.t.default


def merge(loop: Loop) -> Loop:
    """The loop without values that are another value again."""
    draft = Draft(loop)
    numbers: dict[object, int] = {}
    found: dict[fx.Node, int] = {}
    first: dict[int, fx.Node] = {}
    for node in list(draft.graph.nodes):
        source = node.args[0] if node.target is turn else None
        if isinstance(source, fx.Node) and source.target is turn:
            found[node] = found[source.all_input_nodes[0]]
            draft.replace(node, first[found[node]])
            continue
        key: object = node if node.op == "placeholder" else key_of(node, found)
        found[node] = numbers.setdefault(key, len(numbers))
        if first.setdefault(found[node], node) is not node:
            draft.replace(node, first[found[node]])
    return draft.close()
