"""Which values of a loop lie on cycles: the graph with its delay edges, condensed into strongly connected components.

A component with a cycle must run step by step; everything else can run on all steps at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import fx

from leporello.loop.classes import Class, classes
from leporello.loop.components import components

if TYPE_CHECKING:
    from leporello.loop.loop import Loop


def ordered(loop: Loop, kinds: Mapping[fx.Node, Class]) -> list[list[fx.Node]]:
    """Components of what varies, each after what it depends on; a state depends on what enters its delay."""
    varying = [node for node, kind in kinds.items() if kind is Class.VARYING]
    before = {node: list(node.all_input_nodes) for node in varying}
    for into, out in loop.delays.values():
        if out in before:
            before[out].append(into)
    return components(
        varying, {node: [s for s in found if kinds[s] is Class.VARYING] for node, found in before.items()}
    )


def values_on_cycles(loop: Loop) -> set[fx.Node]:
    """What must run step by step."""
    return {node for component in ordered(loop, classes(loop)) if len(component) > 1 for node in component}


def states_on_cycles(loop: Loop) -> set[str]:
    """The states whose delay closes a cycle; the others are constant, or a mere shift."""
    cyclic = values_on_cycles(loop)
    return {name for name, (_, out) in loop.delays.items() if out in cyclic}
