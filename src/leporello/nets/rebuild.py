"""A network as its classes and constructor arguments, in plain JSON values; and made again from these.

Written are classes by their import path, numbers, texts, lists, dicts, dtypes, small tensors, gradient methods, and
modules within each other: cells and networks of ours keep what they were constructed with, modules of torch.nn show it
in their attributes. Read is nothing but that: a class is imported and must be a module's; no code is in the file.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import FileMismatch
from leporello.gradient.method import Method
from leporello.loop.construction import ATTRIBUTE, Construction

LARGEST = 1 << 16  # elements of a tensor among the arguments: a file is no place for more as text


class NotPlain(Exception):
    """An argument that no file can hold, in words."""


# ---- into plain values


def described_construction(net: nn.Module) -> dict[str, Any]:
    """How a network is made: `modules`, of which the last is the network; or `unknown`, why that cannot be said."""
    describer = _Describer()
    try:
        describer.module(net, type(net).__name__)
    except NotPlain as reason:
        return {"unknown": str(reason)}
    return {"modules": describer.modules}


class _Describer:
    """Writes modules, each once.

    modules   what was written, each behind the modules among its arguments
    """

    def __init__(self) -> None:
        self.modules: list[dict[str, Any]] = []
        self._places: dict[int, int] = {}

    def module(self, module: nn.Module, where: str) -> dict[str, int]:
        if id(module) not in self._places:
            args, options = _arguments_of(module, where)
            names = _names(type(module), len(args))
            written = {
                "class": _path_of(type(module), where),
                "args": [self.value(value, f"{where}: {name}") for value, name in zip(args, names, strict=True)],
                "options": {name: self.value(value, f"{where}: {name}") for name, value in options.items()},
            }
            self._places[id(module)] = len(self.modules)
            self.modules.append(written)
        return {"module": self._places[id(module)]}

    def value(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, nn.Module):
            return self.module(value, f"{where}, {type(value).__name__}")
        if type(value) in (list, tuple, torch.Size):
            items = [self.value(item, f"{where}[{index}]") for index, item in enumerate(value)]
            return items if type(value) is list else {"tuple": items}
        if type(value) is dict and all(type(key) is str for key in value):
            return {"dict": {key: self.value(item, f"{where}[{key!r}]") for key, item in value.items()}}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, Tensor) and value.numel() <= LARGEST and not value.is_complex():
            dtype = str(value.dtype).removeprefix("torch.")
            return {"tensor": value.detach().tolist(), "dtype": dtype, "shape": list(value.shape)}
        if isinstance(value, Method) and dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            written = {name: self.value(item, f"{where}.{name}") for name, item in fields.items()}
            return {"method": _path_of(type(value), where), "options": written}
        kind = getattr(value, "__name__", None) or type(value).__name__
        raise NotPlain(f"{where} is {kind}, which a file cannot hold")


def _arguments_of(module: nn.Module, where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made: Construction | None = vars(module).get(ATTRIBUTE)
    if made is not None:
        return made.args, made.options
    if type(module) in (nn.Sequential, nn.ModuleList):
        children = tuple(module.children())
        return (children if type(module) is nn.Sequential else (list(children),)), {}
    if type(module).__module__.startswith("torch.nn."):
        return (), _shown(module, where)
    raise NotPlain(f"{where} does not say what it was constructed with: it is no lp.Cell and no module of torch.nn")


def _shown(module: nn.Module, where: str) -> dict[str, Any]:
    """The arguments of a module of torch.nn, by its attributes of the same names; where it has none, the default."""
    found = {}
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name in ("self", "device", "dtype") or name.startswith("_"):
            continue
        value = getattr(module, name, parameter.default)
        if name == "bias" and (value is None or isinstance(value, Tensor)):
            value = value is not None
        if value is inspect.Parameter.empty or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise NotPlain(f"{where}: {name} is kept nowhere")
        found[name] = value
    return found


def _names(kind: type, count: int) -> list[str]:
    """The names of the first positional arguments of a class, for errors."""
    names: list[str] = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:  # type: ignore[misc]
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{index}]" for index in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*names, *[f"argument {index}" for index in range(len(names), count)]][:count]


def _path_of(kind: type, where: str) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    try:
        same = _imported(path) is kind
    except (ImportError, AttributeError):
        same = False
    if not same:
        raise NotPlain(f"{where} is of the class {kind.__qualname__}, which cannot be imported from {kind.__module__}")
    return path


# ---- and back


def rebuilt(construction: dict[str, Any], path: Any) -> nn.Module:
    """The network that is described, as its constructors make it; torch's random numbers stay where they were.

    path   of the file, for errors
    """
    if "unknown" in construction:
        raise FileMismatch(
            "the file does not say how its network is made.",
            file=path,
            came=construction["unknown"],
            tries="lp.load(file, into=net), with a network like the one that was saved",
        )
    made: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        for written in construction["modules"]:
            kind = _class_of(written["class"], nn.Module, path)
            args = [_plain(value, made, path) for value in written["args"]]
            options = {name: _plain(value, made, path) for name, value in written["options"].items()}
            made.append(_constructed(kind, args, options, path))
    return made[-1]


def _constructed(kind: Callable[..., Any], args: list[Any], options: dict[str, Any], path: Any) -> Any:
    try:
        return kind(*args, **options)
    except Exception as error:
        raise FileMismatch(
            f"{kind.__name__} cannot be constructed as it was.",
            file=path,
            says=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            tries="the version of the class that was saved; or lp.load(file, into=net)",
        ) from error


def _plain(value: Any, made: list[nn.Module], path: Any) -> Any:
    """The argument that a JSON value stands for."""
    if isinstance(value, list):
        return [_plain(item, made, path) for item in value]
    if not isinstance(value, dict):
        return value
    if "module" in value:
        return made[value["module"]]
    if "tuple" in value:
        return tuple(_plain(item, made, path) for item in value["tuple"])
    if "dict" in value:
        return {key: _plain(item, made, path) for key, item in value["dict"].items()}
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=_dtype(value["dtype"])).reshape(value["shape"])
    if "method" in value:
        options = {name: _plain(item, made, path) for name, item in value["options"].items()}
        return _constructed(_class_of(value["method"], Method, path), [], options, path)
    return _dtype(value["dtype"])


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(name)
    return dtype


def _class_of(path_of_class: str, base: type, path: Any) -> Callable[..., Any]:
    """The class with an import path, if it is derived from `base`."""
    try:
        kind = _imported(path_of_class)
    except (ImportError, AttributeError) as error:
        raise FileMismatch(
            f"the class {path_of_class.replace(':', '.')} of the file cannot be imported.",
            file=path,
            says=error,
            tries="make its module importable here, or lp.load(file, into=net)",
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise FileMismatch(
            f"what the file calls {path_of_class.replace(':', '.')} is no class of networks.",
            file=path,
            came=type(kind).__name__,
            expected=f"a class derived from {base.__name__}",
        )
    return kind


def _imported(path_of_class: str) -> Any:
    module, _, name = path_of_class.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
