"""The rewrite `prune`: a Loop without the states and inputs that none of its results needs.

Liveness is followed through delays: a state that only feeds itself is dead.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop


def prune(loop: Loop, keep: Collection[str] = ()) -> Loop:
    """The Loop without dead states and unread inputs.

    keep   states whose last value is wanted
    """
    alive = _alive(loop, keep)
    draft = Draft(loop)
    draft.outputs = [(port, node) for port, node in draft.outputs if port.kind != "state" or port.name in alive]
    pruned = draft.close()
    used = set(pruned.results)
    unread = [
        node
        for port, node in zip(pruned.inputs, pruned.placeholders, strict=True)
        if not node.users and node not in used and not (port.kind == "state" and port.name in alive)
    ]
    inputs = tuple(port for port, node in zip(pruned.inputs, pruned.placeholders, strict=True) if node not in unread)
    for node in unread:
        pruned.graph.erase_node(node)
    return pruned.replace(inputs=inputs)


def _alive(loop: Loop, keep: Collection[str]) -> set[str]:
    """States that a sequence, a total, or a state in `keep` depends on, over any number of steps."""
    delays = loop.delays
    alive = {name for name in delays if name in keep}
    roots = [node for port, node in zip(loop.outputs, loop.results, strict=True) if port.kind != "state"]
    while True:
        reached = _reached([*roots, *(delays[name][0] for name in alive)])
        grown = alive | {name for name, (_, out) in delays.items() if out in reached}
        if grown == alive:
            return alive
        alive = grown


def _reached(roots: list[fx.Node]) -> set[fx.Node]:
    """All values that the roots are computed from within one step, and the roots."""
    reached: set[fx.Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += node.all_input_nodes
    return reached
