"""Tensors that a step reads and that are neither its arguments nor registered with the cell: where they are found.

A plain tensor in an attribute, a parameter in a dict, a list, another object or a closure: each is an invariant, found
by identity when the trace meets it, and read from its place again at each call. Modules and numbers that a step reads
from such places decide whether its trace still holds: `modules_elsewhere`, `numbers_elsewhere`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.errors import UntraceableStep
from leporello.loop.construction import ATTRIBUTE
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.state import described
from leporello.loop.step import FunctionCell

aten = torch.ops.aten
_TRACED = (FakeTensor, FunctionalTensor)  # what a trace computes with; the second while it is made functional

MAX_DEPTH = 6  # of containers and objects within each other

_Key = tuple[str, Any]  # how to go one step, by one of `_STEPS`, and which


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tensor is found: from an object, by attributes, items and closures.

    name   as an expression of the user: `scales["slow"]`
    """

    root: Any
    path: tuple[_Key, ...]
    name: str

    def read(self) -> Any:
        """What is there now; None where the way to it is gone."""
        value = self.root
        try:
            for kind, key in self.path:
                value = _STEPS[kind](value, key)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            return None
        return value


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": lambda value, name: vars(value)[name],
    "member": getattr,
    "item": lambda value, key: value[key],
    "closure": lambda function, index: function.__closure__[index].cell_contents,
    "global": lambda function, name: function.__globals__[name],
    "default": lambda function, index: function.__defaults__[index],
}


@dataclass(frozen=True, eq=False)
class Found:
    """A tensor that was found, in all its places; its name is that of the first."""

    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        return self.places[0].name

    def read(self) -> Tensor | None:
        """The tensor that is there now; None if there is none, or if there is not one and the same in all places."""
        first = self.places[0].read()
        same = isinstance(first, Tensor) and all(place.read() is first for place in self.places[1:])
        return first if same else None


def found_in(cell: nn.Module) -> dict[int, Found]:
    """All tensors that a cell can reach and does not know as parameters or buffers, by id."""
    known = {id(tensor) for tensor in (*cell.parameters(), *cell.buffers())}
    places = _searched(cell).places
    return {key: Found(tuple(found)) for key, found in places.items() if key not in known}


def modules_elsewhere(cell: nn.Module) -> list[nn.Module]:
    """The modules that a step may call and that the cell does not hold as its own: `train` does not reach them."""
    held = {id(module) for module in cell.modules()}
    return [module for key, module in _searched(cell).modules.items() if key not in held]


def numbers_elsewhere(cell: nn.Module) -> list[Place]:
    """Where the step itself reads plain numbers that are no attributes of the cell: globals, free variables, defaults,
    and of a method the attributes of its object."""
    places = []
    for module in cell.modules():
        step = _step_of(module)
        method = isinstance(step, types.MethodType)
        function: Any = step.__func__ if method else step
        if isinstance(function, types.FunctionType):
            places += [Place(function, *part[::2]) for part in _parts_of_function(function) if _is_number(part[1])]
        if method and isinstance(function, types.FunctionType):
            named = _global_names(function.__code__)
            attributes = getattr(step.__self__, "__dict__", {})
            own = [name for name, value in attributes.items() if name in named and _is_number(value)]
            places += [Place(step.__self__, (("attribute", name),), name) for name in own]
    return places


def _step_of(module: nn.Module) -> Any:
    """The function that a module runs as a step; None for modules of torch and of this library."""
    if isinstance(module, FunctionCell):
        return module.function
    return None if type(module).__module__.startswith(_PACKAGES) else inspect.getattr_static(module, "forward", None)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS)


@dataclass
class _Search:
    """What a cell can reach: the places of tensors by id, and modules by id."""

    places: dict[int, list[Place]] = field(default_factory=dict)
    modules: dict[int, nn.Module] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def look(self, value: Any, place: Place, depth: int = 0) -> None:
        """Add what is within a value."""
        if isinstance(value, Tensor):
            self.places.setdefault(id(value), []).append(place)
            return
        if isinstance(value, _LEAVES) or id(value) in self.seen or depth > MAX_DEPTH:
            return
        self.seen.add(id(value))
        if isinstance(value, nn.Module):
            self.modules |= {id(module): module for module in value.modules()}
        for keys, inner, name in _parts(value, place.name):
            self.look(inner, Place(place.root, (*place.path, *keys), name), depth + 1)


def _searched(cell: nn.Module) -> _Search:
    search = _Search(seen={id(cell)})
    for module_path, module in cell.named_modules():
        prefix = f"{module_path}." if module_path else ""
        for name, value in vars(module).items():
            if name not in _MANAGED_BY_TORCH:
                search.look(value, Place(module, (("attribute", name),), f"{prefix}{name}"))
        for function in _functions_of(module):
            search.look(function, Place(function, (), ""))
    return search


def _functions_of(module: nn.Module) -> list[Any]:
    """The functions that a step of the module may run: its own, or the methods of its classes that are the user's."""
    if isinstance(module, FunctionCell):
        return [module.function]
    classes = [kind for kind in type(module).__mro__ if not kind.__module__.startswith((*_PACKAGES, "builtins"))]
    return [value for kind in classes for value in vars(kind).values() if isinstance(value, types.FunctionType)]


_TABLES = ("_parameters", "_buffers", "_modules")
_MANAGED_BY_TORCH = frozenset(vars(nn.Module())) | {"_flat_weights", ATTRIBUTE}
_PACKAGES = ("torch.", "leporello.")
_NUMBERS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)
_LEAVES = (*_NUMBERS, type, types.ModuleType)


def _parts(value: Any, name: str) -> Iterator[tuple[tuple[_Key, ...], Any, str]]:
    """What a container, a function or an object holds: how to get there, and its name."""
    if isinstance(value, Mapping):
        yield from (((("item", key),), item, f"{name}[{key!r}]") for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from (((("item", index),), item, f"{name}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, types.FunctionType):
        if not (value.__module__ or "").startswith(_PACKAGES):
            yield from _parts_of_function(value)
    elif isinstance(value, (types.MethodType, functools.partial)):
        members = ("__self__", "__func__") if isinstance(value, types.MethodType) else ("func", "args", "keywords")
        yield from (((("member", member),), getattr(value, member), name) for member in members)
    else:
        dotted = f"{name}." if name else ""
        for attribute, inner in getattr(value, "__dict__", {}).items():
            if not isinstance(value, nn.Module) or attribute not in _MANAGED_BY_TORCH:
                yield (("attribute", attribute),), inner, f"{dotted}{attribute}"
            elif attribute in _TABLES:  # of a module that the cell does not know
                way = ("attribute", attribute)
                yield from (((way, ("item", key)), item, f"{dotted}{key}") for key, item in inner.items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[tuple[_Key, ...], Any, str]]:
    """The free variables of a function, and the globals it reads that may hold a tensor."""
    code = function.__code__
    for index, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__ or (), strict=True)):
        try:
            yield (("closure", index),), cell.cell_contents, name
        except ValueError:  # not assigned yet
            continue
    for name in _global_names(code):
        if name in function.__globals__:
            yield (("global", name),), function.__globals__[name], name
    for index, default in enumerate(function.__defaults__ or ()):
        yield (("default", index),), default, f"default{index}"


def _global_names(code: types.CodeType) -> dict[str, None]:
    """The names that a function reads and does not assign, in its comprehensions and inner functions too."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


# ---- while a step is traced


class FindTensors(TorchDispatchMode):
    """While active, operators that read a tensor of the cell, or one that it can reach, read a fake one instead.

    known   the fake tensor in the place of each tensor, by its id
    found   tensors that were met and not known, by the name of their place: the trace must be made again with them
            among its inputs
    """

    def __init__(self, cell: nn.Module, family: FakeTensorFamily, known: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.cell, self.family = cell, family
        self.known = dict(known)
        self.found: dict[str, tuple[Tensor, Found]] = {}
        self.reachable: dict[int, Found] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not aten.lift_fresh.default and (any(map(_is_real, args)) or any(map(_is_real, kwargs.values()))):
            args, kwargs = pytree.tree_map_only(Tensor, self._instead, (args, kwargs))
        return func(*args, **kwargs)

    def _instead(self, tensor: Tensor) -> Tensor:
        """The fake tensor in the place of a real one."""
        if isinstance(tensor, _TRACED):
            return tensor
        if id(tensor) not in self.known:
            if self.reachable is None:
                self.reachable = found_in(self.cell)
            found = self.reachable.get(id(tensor))
            if found is None:
                raise _unreachable(tensor)
            self.found[found.name] = (tensor, found)
            self.known[id(tensor)] = self.family.tensor(tensor.shape, tensor.dtype, tensor.device, rows=False)
        return self.known[id(tensor)]


def _is_real(argument: Any) -> bool:
    """Whether an argument of an operator is a tensor with numbers, or a list with one."""
    if isinstance(argument, (list, tuple)):
        return any(isinstance(item, Tensor) and not isinstance(item, _TRACED) for item in argument)
    return isinstance(argument, Tensor) and not isinstance(argument, _TRACED)


def _unreachable(tensor: Tensor) -> UntraceableStep:
    return UntraceableStep(
        "the step reads a tensor that cannot be found from the cell, so that a later call could not read it again.",
        came=described(tensor),
        expected="a parameter, a buffer, or a tensor in an attribute, a container or a closure of the cell",
        tries="self.register_buffer, nn.Parameter or a submodule in the cell; or make it inside of the step",
    )


# ---- while a plain loop runs


class ReadInstead(TorchFunctionMode):
    """While active, torch's functions read other tensors in the place of some, by id."""

    def __init__(self, instead: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.instead = instead

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.instead:
            args, kwargs = pytree.tree_map_only(Tensor, lambda t: self.instead.get(id(t), t), (args, kwargs or {}))
        return func(*args, **(kwargs or {}))
