"""The rewrite `merge_equal_values`: common subexpressions are computed once, and a double transpose is dropped.

Two values are equal if the same operator computes them from equal values. Random numbers are inputs, so every operator
is a pure function of what it reads.
"""

from __future__ import annotations

from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import key_of
from leporello.loop.loop import Loop
from leporello.loop.value_classes import is_transposed


def merge_equal_values(loop: Loop) -> Loop:
    """The Loop without values that are equal to an earlier one."""
    draft = Draft(loop)
    numbers: dict[object, int] = {}  # by operator and numbers of its arguments: the number of the value
    number_of: dict[fx.Node, int] = {}
    first: dict[int, fx.Node] = {}
    for node in list(draft.graph.nodes):
        source = node.all_input_nodes[0] if is_transposed(node) else None
        if source is not None and is_transposed(source):
            number_of[node] = number_of[source.all_input_nodes[0]]
            draft.replace(node, first[number_of[node]])
            continue
        key: object = node if node.op == "placeholder" else key_of(node, number_of)
        number_of[node] = numbers.setdefault(key, len(numbers))
        if first.setdefault(number_of[node], node) is not node:
            draft.replace(node, first[number_of[node]])
    return draft.close()
