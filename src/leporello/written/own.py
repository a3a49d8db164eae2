"""Cells of one's own: `my_model:Leaky:3,64,1` is imported, from the current folder too, and built.

Knows modules and their attributes; what a cell can do is found out by those who use it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from functools import reduce
from pathlib import Path
from types import ModuleType

from torch import nn

from leporello.errors import ArgumentError
from leporello.written.blame import line_of, words_of
from leporello.written.build import build, required
from leporello.written.built_in import SIZES
from leporello.written.spelling import Spelling


def own(spelling: Spelling) -> nn.Module:
    """The class built from its sizes, what the function makes, or the object itself."""
    found = imported(spelling)
    if isinstance(found, nn.Module):
        return _ready(found, spelling)
    if not callable(found):
        raise _no_cell(spelling, found)
    made = build(found, spelling.name, spelling.sizes, spelling.options, _example(found, spelling))
    if not isinstance(made, nn.Module):
        raise _no_cell(spelling, made)
    return made


def imported(spelling: Spelling) -> object:
    """What the module has under that name."""
    return _attribute(_module(spelling), spelling)


def _module(spelling: Spelling) -> ModuleType:
    name = spelling.module or ""
    if name.endswith(".py") or "/" in name or "\\" in name:
        raise ArgumentError(
            f"'{name}' is a file; a module is asked for.",
            came=spelling.text,
            tries=f"{Path(name).stem}:{spelling.name}, in the folder of that file",
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _not_imported(spelling, error) from error
        raise ArgumentError(
            f"there is no module '{error.name}'.",
            came=spelling.text,
            nearest=_nearest(error.name, sorted(path.stem for path in Path(here).glob("*.py"))),
            looked_in=f"{here} and the installed packages",
        ) from error
    except (Exception, SystemExit) as error:
        raise _not_imported(spelling, error) from error


def _attribute(module: ModuleType, spelling: Spelling) -> object:
    try:
        return reduce(getattr, spelling.name.split("."), module)
    except AttributeError as error:
        there = [name for name in vars(module) if not name.startswith("_")]
        raise ArgumentError(
            f"the module '{module.__name__}' has no '{spelling.name}'.",
            came=spelling.text,
            nearest=_nearest(spelling.name, there),
            module=getattr(module, "__file__", None),
        ) from error


def _ready(found: nn.Module, spelling: Spelling) -> nn.Module:
    if spelling.sizes or spelling.options:
        raise ArgumentError(
            f"'{spelling.bare}' is built already.", came=spelling.text, tries=f"without sizes: {spelling.bare}"
        )
    return found


def _example(found: object, spelling: Spelling) -> str:
    names = required(found) if callable(found) else []
    return ":".join([spelling.bare, ",".join(str(SIZES.get(name, 4)) for name in names)]).rstrip(":")


def _nearest(name: str, there: list[str]) -> str | None:
    return ", ".join(difflib.get_close_matches(name, there, n=3, cutoff=0.5)) or None


def _not_imported(spelling: Spelling, error: BaseException) -> ArgumentError:
    return ArgumentError(
        f"the module '{spelling.module}' cannot be imported.", line=line_of(error), says=words_of(error)
    )


def _no_cell(spelling: Spelling, found: object) -> ArgumentError:
    return ArgumentError(
        f"'{spelling.bare}' gives no cell.",
        came=type(found).__name__,
        expected="a class derived from lp.Cell, a function that makes one, or an object of one",
    )
