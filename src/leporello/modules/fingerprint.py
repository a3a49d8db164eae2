"""What a trace depends on beside shapes: the plain attributes of a cell and its submodules, its modes, autocast.

Knows modules; knows nothing of traces.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from leporello.loop.state import Tree

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def fingerprint(cell: nn.Module) -> Hashable:
    """A value that changes when an attribute, a mode, a parameter's shape or a hook of the cell changes."""
    found: list[Hashable] = []
    for module in cell.modules():
        found.append(id(type(module)))
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE:
                found.append((name, _plain(value)))
        for parameter in (*module._parameters.values(), *module._buffers.values()):
            if parameter is not None:
                found.append((parameter.shape, parameter.dtype, parameter.device))
        found.append(bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks))
    return tuple(found)


def _plain(value: Any) -> Hashable:
    if isinstance(value, (int, float, str, bool, type(None))):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_plain, value))
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, Tensor):
        return ("tensor", id(value))
    return id(value) if callable(value) else repr(value)


def structure(tree: Tree) -> Hashable:
    """The nesting of a tree with the shape of one row, dtype and device of each leaf, time and batch left out."""
    if isinstance(tree, dict):
        return ("dict", *((key, structure(value)) for key, value in tree.items()))
    if isinstance(tree, (tuple, list)):
        return (type(tree), *map(structure, tree))
    return None


def autocast_mode(device: torch.device) -> Hashable:
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)
