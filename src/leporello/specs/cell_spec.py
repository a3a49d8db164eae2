"""A cell named by a text, `lstm:28,256`, `leaky:3,4,2,alpha=0.5` or `my_model:Leaky:3,64,1`: parsed, found and built.

A cell is a built-in one, or imported from a module of the user, which is also looked for in the current folder.
Built-in cells have default sizes: `lstm` alone names a cell.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import ModuleType

from torch import nn

from leporello import cells
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.specs.user_code import build, first_line, required_arguments, user_line

_NAME = re.compile(r"[^\W\d][\w.]*")
_CONSTANTS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class CellSpec:
    """One cell as it was written.

    text      the whole specification
    module    the module it is imported from; None for a built-in cell
    name      of the cell, class, function or object
    sizes     positional arguments to build it from
    options   keyword arguments: those written as name=value
    """

    text: str
    module: str | None
    name: str
    sizes: tuple[float, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def bare(self) -> str:
        """The specification without sizes and options."""
        return self.name if self.module is None else f"{self.module}:{self.name}"


def parse_cells(text: str) -> list[CellSpec]:
    """The cells that a text names; those of a stack are separated by plus signs, the lowest first.

    >>> parse_cells("lstm:28,256")[0].sizes
    (28, 256)
    >>> [spec.bare for spec in parse_cells("my_model:Leaky:3,64+gru")]
    ['my_model:Leaky', 'gru']
    """
    return [_parse_cell(part.strip(), text) for part in text.split("+")]


def _parse_cell(part: str, text: str) -> CellSpec:
    first, *others = (piece.strip() for piece in part.split(":"))
    has_module = bool(others) and _NAME.fullmatch(others[0]) is not None
    module, name, rest = (first, others[0], others[1:]) if has_module else (None, first, others)
    if not name or first == "" or len(rest) > 1:
        raise ArgumentError(
            "this names no cell.",
            came=repr(text),
            expected="a built-in cell, as lstm or lstm:28,256; or one of your own, as my_model:Leaky:3,64,1",
        )
    sizes, options = _parse_arguments(rest[0], part) if rest else ((), {})
    return CellSpec(part, module, name, sizes, options)


def _parse_arguments(text: str, part: str) -> tuple[tuple[float, ...], dict[str, object]]:
    sizes: list[float] = []
    options: dict[str, object] = {}
    for item in text.split(","):
        name, equals, value = (piece.strip() for piece in item.partition("="))
        if equals and name.isidentifier():
            options[name] = _parse_value(value)
        else:
            sizes.append(_parse_size(item.strip(), part))
    return tuple(sizes), options


def _parse_size(item: str, part: str) -> float:
    for kind in (int, float):
        try:
            return kind(item)
        except ValueError:
            continue
    raise ArgumentError(
        f"'{item}' is no size.",
        came=part,
        expected="numbers with commas between, as lstm:28,256; options as leaky:3,4,2,alpha=0.5",
    )


def _parse_value(text: str) -> object:
    """A Python literal, true, false or none; anything else stays a string."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# ---- from a specification to a cell

DEFAULT_SIZES = {"inputs": 3, "hidden": 4, "outputs": 2, "window": 3}  # by the argument's name
DEFAULT_OPTIONS = {"alpha": 0.2}  # for keyword arguments without a default


def built_in_cell(spec: CellSpec, inputs: int | None = None) -> Cell:
    """Build the built-in cell that is named.

    inputs   the size of its input where the specification has no sizes: the outputs of the cell below; None for the
             default
    """
    cell_class = built_in_class(spec)
    sizes: tuple[float, ...] = spec.sizes
    if not sizes:
        defaults = {**DEFAULT_SIZES, "inputs": inputs or DEFAULT_SIZES["inputs"]}
        sizes = tuple(defaults[name] for name in required_arguments(cell_class) if name not in spec.options)
    required_options = {
        name: DEFAULT_OPTIONS[name]
        for name, parameter in inspect.signature(cell_class).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }
    example = f"{spec.name}:{','.join(str(DEFAULT_SIZES[name]) for name in required_arguments(cell_class))}"
    cell = build(cell_class, cell_class.__name__, sizes, {**required_options, **spec.options}, example)
    assert isinstance(cell, Cell)
    return cell


def built_in_class(spec: CellSpec) -> type[Cell]:
    """The class of a built-in cell; case, hyphens and underscores of its name do not matter."""
    class_names = {name.lower(): name for name in cells.__all__}
    key = spec.name.lower().replace("-", "").replace("_", "")
    if key in class_names:
        return getattr(cells, class_names[key])
    nearest = [class_names[name] for name in difflib.get_close_matches(key, class_names, n=3)]
    raise ArgumentError(
        f"no built-in cell is called '{spec.name}'.",
        nearest=", ".join(nearest) or None,
        expected=", ".join(cells.__all__),
        tries="a cell of your own is written with its module: my_model:Leaky",
    )


def user_cell(spec: CellSpec) -> nn.Module:
    """The cell of a user's module: a class or a function is called with sizes and options; a module object is returned
    as it is, and takes none."""
    target = imported_object(spec)
    if isinstance(target, nn.Module):
        _refuse_arguments(spec)
        return target
    if not callable(target):
        raise _no_cell(spec, target)
    names = required_arguments(target)
    example = ":".join([spec.bare, ",".join(str(DEFAULT_SIZES.get(name, 4)) for name in names)]).rstrip(":")
    cell = build(target, spec.name, spec.sizes, spec.options, example)
    if not isinstance(cell, nn.Module):
        raise _no_cell(spec, cell)
    return cell


def imported_object(spec: CellSpec) -> object:
    """Import the module and return its attribute of that name, without building anything."""
    module = _import_module(spec)
    try:
        return reduce(getattr, spec.name.split("."), module)
    except AttributeError as error:
        public_names = [name for name in vars(module) if not name.startswith("_")]
        raise ArgumentError(
            f"the module '{module.__name__}' has no '{spec.name}'.",
            came=spec.text,
            nearest=_nearest(spec.name, public_names),
            module=getattr(module, "__file__", None),
        ) from error


def _import_module(spec: CellSpec) -> ModuleType:
    name = spec.module or ""
    if name.endswith(".py") or "/" in name or "\\" in name:
        raise ArgumentError(
            f"'{name}' is a file; a module is asked for.",
            came=spec.text,
            tries=f"{Path(name).stem}:{spec.name}, in the folder of that file",
        )
    current_folder = os.getcwd()
    if current_folder not in sys.path:
        sys.path.insert(0, current_folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(spec, error) from error
        raise ArgumentError(
            f"there is no module '{error.name}'.",
            came=spec.text,
            nearest=_nearest(error.name, sorted(path.stem for path in Path(current_folder).glob("*.py"))),
            looked_in=f"{current_folder} and the installed packages",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(spec, error) from error


def _refuse_arguments(spec: CellSpec) -> None:
    if spec.sizes or spec.options:
        raise ArgumentError(f"'{spec.bare}' is built already.", came=spec.text, tries=f"without sizes: {spec.bare}")


def _nearest(name: str, candidates: list[str]) -> str | None:
    return ", ".join(difflib.get_close_matches(name, candidates, n=3, cutoff=0.5)) or None


def _import_failed(spec: CellSpec, error: BaseException) -> ArgumentError:
    return ArgumentError(
        f"the module '{spec.module}' cannot be imported.", line=user_line(error), says=first_line(error)
    )


def _no_cell(spec: CellSpec, value: object) -> ArgumentError:
    return ArgumentError(
        f"'{spec.bare}' gives no cell.",
        came=type(value).__name__,
        expected="a class derived from lp.Cell, a function that makes one, or an object of one",
    )
