"""A key per value of a graph: the same for the same operator on the same values.

Knows nodes and their arguments; knows nothing of what they compute.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import fx


def key_of(node: fx.Node, numbers: Mapping[fx.Node, int]) -> Hashable:
    """The operator with its arguments, values among them by their numbers."""
    return (node.target, _frozen(node.args, numbers), _frozen(node.kwargs, numbers))


def _frozen(argument: Any, numbers: Mapping[fx.Node, int]) -> Any:
    if isinstance(argument, fx.Node):
        return ("value", numbers[argument])
    if isinstance(argument, (list, tuple)):
        return tuple(_frozen(item, numbers) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _frozen(value, numbers)) for name, value in argument.items())
    told = repr(argument) if isinstance(argument, (float, complex)) else argument  # 0.0 == -0.0
    return (type(argument).__name__, told)
