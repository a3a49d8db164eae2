"""Parse the text that names a cell: `lstm:28,256`, `leaky:3,4,2,alpha=0.5`, `my_model:Leaky:3,64,1`.

Only the form is checked here; `cell_lookup` finds the cell that is meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from leporello.errors import ArgumentError

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
