"""What a trace depends on beside shapes: the plain attributes of a cell and its submodules, its modes, autocast.

Knows modules; knows nothing of traces.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from leporello.loop.state import Tree
from leporello.loop.step_checks import HOOKS

OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def fingerprint(cell: nn.Module) -> Hashable:
    """A value that changes with the attributes, modes, hooks, shapes of parameters and shared parts of the cell."""
    found: list[Any] = []
    places: dict[int, int] = {}  # of parameters, buffers and modules: the same twice is the same place twice
    for module in cell.modules():
        found.append(type(module))
        for name, value in vars(module).items():
            if name not in OF_EVERY_MODULE:
                found.append((name, plain(value)))
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    place = places.setdefault(id(tensor), len(places))
                    found.append((name, place, tensor.shape, tensor.dtype, tensor.device))
        found.extend(places.setdefault(id(child), len(places)) for child in module._modules.values())
        found.append(any(getattr(module, hooks) for hooks in HOOKS))
    return tuple(found)


def plain(value: Any) -> Hashable:
    """What plain attributes are compared by. What equals only itself is held: an id may come back."""
    if isinstance(value, (int, float, str, bool, type(None))):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return (type(value), *map(plain, value))
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in value.items())
    if isinstance(value, Tensor):
        return ("tensor", id(value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value if callable(value) else (value, repr(value))


def structure(tree: Tree) -> Hashable:
    """The nesting of a tree with the shape of one row, dtype and device of each leaf, time and batch left out."""
    if isinstance(tree, dict):
        return ("dict", *((key, structure(value)) for key, value in tree.items()))
    if isinstance(tree, (tuple, list)):
        return (type(tree), *map(structure, tree))
    return None if tree is None else "leaf"


def autocast_mode(device: torch.device) -> Hashable:
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)
