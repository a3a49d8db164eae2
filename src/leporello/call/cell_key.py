"""What a trace depends on beside shapes: the plain attributes of a cell and its submodules, its modes, autocast.

Knows modules; knows nothing of traces.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
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


_UNCHANGING = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, torch.device)


class Watch:
    """What a cell was: its attributes, its parameters and buffers with their forms, its parts, its hooks.

    `same` says whether nothing a trace depends on has changed. It is written out for the cell, comparison by
    comparison: a loop over them would cost as much as they do.
    """

    __slots__ = ("known", "lines", "same")

    def __init__(self, cell: nn.Module) -> None:
        self.known: dict[str, Any] = {"plain": plain}
        self.lines: list[str] = []
        for module in cell.modules():
            self._attributes(vars(module))
            for table in (module._parameters, module._buffers):
                self._tensors(table)
            if module._modules:
                children = self._know(module._modules), self._know(list(module._modules.values()))
                self._unless(f"list({children[0]}.values()) == {children[1]}")
        self.same: Callable[[], bool] = self._written()

    def _attributes(self, own: dict[str, Any]) -> None:
        of = self._know(own)
        self._unless(f"len({of}) == {len(own)}")
        for name, value in own.items():
            if name in HOOKS:
                self._unless(f"not {of}[{name!r}]")
            elif name in OF_EVERY_MODULE:
                continue
            elif _stays(value):
                self._unless(f"{of}[{name!r}] is {self._know(value)}")
            elif type(value) is dict and all(map(_stays, value.values())):
                table = self._know_line(f"{of}[{name!r}]")
                self._unless(f"type({table}) is dict and len({table}) == {len(value)}")
                for key, item in value.items():
                    self._unless(f"{table}[{self._know(key)}] is {self._know(item)}")
            else:
                self._unless(f"plain({of}[{name!r}]) == {self._know(plain(value))}")

    def _tensors(self, table: dict[str, Any]) -> None:
        if not table:
            return
        of = self._know(table)
        self._unless(f"len({of}) == {len(table)}")
        for name, tensor in table.items():
            found = self._know_line(f"{of}[{name!r}]")
            self._unless(f"{found} is {self._know(tensor)}")
            if tensor is not None:
                self._unless(f"{found}.shape == {self._know(tensor.shape)}")
                self._unless(f"{found}.dtype is {self._know(tensor.dtype)}")
                self._unless(f"{found}.device == {self._know(tensor.device)}")
                self._unless(f"{found}.requires_grad is {tensor.requires_grad}")

    def _know(self, value: Any) -> str:
        """A name for what is compared with."""
        name = f"k{len(self.known)}"
        self.known[name] = value
        return name

    def _know_line(self, value: str) -> str:
        """A name for what is looked up."""
        self.lines.append(f"v = {value}")
        return "v"

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return False")

    def _written(self) -> Callable[[], bool]:
        lines = ["def same():", " try:", *(f"  {line}" for line in self.lines), " except KeyError: return False"]
        exec("\n".join([*lines, " return True"]), self.known)
        found: Callable[[], bool] = self.known["same"]
        return found


def _stays(value: Any) -> bool:
    """Whether the same object is always the same value."""
    if isinstance(value, tuple):
        return all(map(_stays, value))
    return isinstance(value, _UNCHANGING)
