"""What a cell is compared by, so that a trace of it serves again only while the cell is what it was.

`cell_key` is a value to look a trace up by; `unchanged_since_now` gives a fast check for every call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from leporello.loop.construction import ATTRIBUTE
from leporello.loop.tracing.found_tensors import modules_elsewhere, numbers_elsewhere
from leporello.loop.tracing.step_checks import HOOKS

OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"} | {ATTRIBUTE}
IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, torch.device)


def cell_key(cell: nn.Module) -> Hashable:
    """A value that changes with the cell's plain attributes, modes, hooks, forms of its tensors, and shared parts.

    Of what is elsewhere the modes of modules count, and the numbers that the step itself names.
    """
    parts: list[Any] = []
    slots: dict[int, int] = {}  # numbers of parameters, buffers and modules; aliased ones share one number
    for module in cell.modules():
        parts.append(type(module))
        for name, value in vars(module).items():
            if name not in OF_EVERY_MODULE:
                parts.append((name, attribute_key(value, lambda tensor: _form(tensor, slots))))
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    parts.append((name, *_form(tensor, slots)))
        parts.extend(slots.setdefault(id(child), len(slots)) for child in module._modules.values())
        parts.append(any(getattr(module, hooks) for hooks in HOOKS))
    parts.extend((id(module), module.training) for module in modules_elsewhere(cell))
    parts.extend((place.name, attribute_key(place.read())) for place in numbers_elsewhere(cell))
    return tuple(parts)


def _form(tensor: Tensor, slots: dict[int, int]) -> tuple[Any, ...]:
    """The form of a tensor and its number: numbers that are read from it are no part of a trace."""
    return (slots.setdefault(id(tensor), len(slots)), tensor.shape, tensor.dtype, tensor.device)


class _Same:
    """A tensor that is compared by identity."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


def attribute_key(value: Any, of_tensor: Callable[[Tensor], Hashable] = _Same) -> Hashable:
    """What a plain attribute is compared by: its value if it is plain, other objects by equality.

    The key holds such an object itself, because the id of one that is freed may come back.

    of_tensor   what a tensor is compared by; by default it must be the same one
    """
    if isinstance(value, (int, float, str, bool, type(None))):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return (type(value), *(attribute_key(item, of_tensor) for item in value))
    if isinstance(value, dict):
        return tuple((key, attribute_key(item, of_tensor)) for key, item in value.items())
    if isinstance(value, Tensor):
        return of_tensor(value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value if callable(value) else (value, repr(value))


def unchanged_since_now(cell: nn.Module, found: Mapping[str, Callable[[], Any]] | None = None) -> Callable[[], bool]:
    """A function that says whether all that a trace of the cell depends on is unchanged since this call.

    found   how to read tensors that the step reads and the cell does not register

    It is false whenever `cell_key` would differ or a parameter is another tensor, and sometimes without need. It is
    generated for the cell, comparison by comparison: a loop over the comparisons would cost as much as they do.
    """
    return _UnchangedWriter(cell, found or {}).function()


class _UnchangedWriter:
    """Writes the comparisons of one cell.

    names   what the generated lines refer to: remembered values by name
    lines   the body of the function
    """

    def __init__(self, cell: nn.Module, found: Mapping[str, Callable[[], Any]]) -> None:
        self.names: dict[str, Any] = {"attribute_key": attribute_key}
        self.lines: list[str] = []
        for read in found.values():
            self._tensor(f"{self._name(read)}()", read())
        for module in cell.modules():
            self._attributes(vars(module))
            for table in (module._parameters, module._buffers):
                self._tensors(table)
            if module._modules:
                modules, children = self._name(module._modules), self._name(list(module._modules.values()))
                self._require(f"list({modules}.values()) == {children}")
        for module in modules_elsewhere(cell):
            self._require(f"{self._name(module)}.training is {module.training}")
        for place in numbers_elsewhere(cell):
            self._require(f"{self._name(place.read)}() is {self._name(place.read())}")

    def function(self) -> Callable[[], bool]:
        body = [f"  {line}" for line in self.lines]
        source = ["def unchanged():", " try:", *body, " except KeyError: return False", " return True"]
        exec("\n".join(source), self.names)
        unchanged: Callable[[], bool] = self.names["unchanged"]
        return unchanged

    def _attributes(self, attributes: dict[str, Any]) -> None:
        table = self._name(attributes)
        self._require(f"len({table}) == {len(attributes)}")
        for name, value in attributes.items():
            if name in HOOKS:
                self._require(f"not {table}[{name!r}]")
            elif name in OF_EVERY_MODULE:
                continue
            elif _is_immutable(value):
                self._require(f"{table}[{name!r}] is {self._name(value)}")
            elif type(value) is dict and all(map(_is_immutable, value.values())):
                self._assign(f"{table}[{name!r}]")
                self._require(f"type(v) is dict and len(v) == {len(value)}")
                for key, item in value.items():
                    self._require(f"v[{self._name(key)}] is {self._name(item)}")
            else:
                self._require(f"attribute_key({table}[{name!r}]) == {self._name(attribute_key(value))}")

    def _tensors(self, tensors: dict[str, Any]) -> None:
        if not tensors:
            return
        table = self._name(tensors)
        self._require(f"len({table}) == {len(tensors)}")
        for name, tensor in tensors.items():
            self._tensor(f"{table}[{name!r}]", tensor)

    def _tensor(self, expression: str, tensor: Tensor | None) -> None:
        """Require that an expression gives the same tensor, or None, and that it has kept its form."""
        self._assign(expression)
        self._require(f"v is {self._name(tensor)}")
        if tensor is not None:
            self._require(f"v.shape == {self._name(tensor.shape)}")
            self._require(f"v.dtype is {self._name(tensor.dtype)}")
            self._require(f"v.device == {self._name(tensor.device)}")
            self._require(f"v.requires_grad is {tensor.requires_grad}")

    def _name(self, value: Any) -> str:
        """A name for a remembered value."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def _assign(self, expression: str) -> None:
        self.lines.append(f"v = {expression}")

    def _require(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return False")


def _is_immutable(value: Any) -> bool:
    """Whether the same object is always the same value."""
    if isinstance(value, tuple):
        return all(map(_is_immutable, value))
    return isinstance(value, IMMUTABLE)
