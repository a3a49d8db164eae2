"""`Watch`: is a cell still what it was? Asked at every call, so it compares what it remembers and builds nothing.

It answers no whenever `fingerprint` would have changed, and now and then without need: who asks then looks closer.
Knows modules; knows nothing of traces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leporello.loop.refusals import HOOKS
from leporello.modules.fingerprint import OF_EVERY_MODULE, plain

_NOTHING = object()
_UNCHANGING = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, torch.device)


class Watch:
    """What a cell was: its attributes, its parameters and buffers with their forms, its parts, its hooks."""

    __slots__ = ("attributes", "children", "deep", "hooks", "tables", "tensors")

    def __init__(self, cell: nn.Module) -> None:
        self.attributes: list[tuple[dict[str, Any], int, list[tuple[str, Any]]]] = []
        self.tables: list[tuple[dict[str, Any], str, list[tuple[Any, Any]]]] = []
        self.deep: list[tuple[dict[str, Any], str, Any]] = []
        self.tensors: list[tuple[dict[str, Any], int, list[tuple[Any, ...]]]] = []
        self.children: list[tuple[dict[str, Any], list[Any]]] = []
        self.hooks: list[dict[str, Any]] = []
        for module in cell.modules():
            own = vars(module)
            named = [(name, value) for name, value in own.items() if name not in OF_EVERY_MODULE]
            self.attributes.append((own, len(own), [pair for pair in named if _stays(pair[1])]))
            for name, value in named:
                if type(value) is dict and all(map(_stays, value.values())):
                    self.tables.append((own, name, list(value.items())))
                elif not _stays(value):
                    self.deep.append((own, name, plain(value)))
            for table in (module._parameters, module._buffers):
                if table:
                    self.tensors.append((table, len(table), [(name, *_form(value)) for name, value in table.items()]))
            if module._modules:
                self.children.append((module._modules, list(module._modules.values())))
            self.hooks.append(own)

    def same(self) -> bool:
        """Whether nothing a trace depends on has changed."""
        for own, count, pairs in self.attributes:
            if len(own) != count:
                return False
            for name, value in pairs:
                if own.get(name, _NOTHING) is not value:
                    return False
        for own, name, items in self.tables:
            table = own.get(name)
            if type(table) is not dict or len(table) != len(items):
                return False
            for key, value in items:
                if table.get(key, _NOTHING) is not value:
                    return False
        for own, name, value in self.deep:
            if name not in own or plain(own[name]) != value:
                return False
        for table, count, entries in self.tensors:
            if len(table) != count:
                return False
            for name, tensor, shape, dtype, device, needs in entries:
                found = table.get(name, _NOTHING)
                if found is not tensor:
                    return False
                if found is not None and (
                    found.requires_grad is not needs
                    or found.shape != shape
                    or found.dtype is not dtype
                    or found.device != device
                ):
                    return False
        for table, children in self.children:
            if list(table.values()) != children:
                return False
        for own in self.hooks:
            for name in HOOKS:
                if own[name]:
                    return False
        return True


def _stays(value: Any) -> bool:
    """Whether the same object is always the same value."""
    if isinstance(value, tuple):
        return all(map(_stays, value))
    return isinstance(value, _UNCHANGING)


def _form(tensor: Any) -> tuple[Any, ...]:
    if tensor is None:
        return (None, None, None, None, None)
    return (tensor, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
