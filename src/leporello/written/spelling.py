"""How a cell is written: `lstm:28,256`, `leaky:3,4,2,alpha=0.5`, `my_model:Leaky:3,64,1`.

Knows letters and numbers; knows nothing of which cells there are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from leporello.errors import ArgumentError

_NAME = re.compile(r"[^\W\d][\w.]*")
_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Spelling:
    """A cell as it was written.

    text      all of it
    module    where it is imported from; None for a built-in cell
    name      of the cell, class, function or object
    sizes     numbers to build it from
    options   what was written as name=value
    """

    text: str
    module: str | None
    name: str
    sizes: tuple[float, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def bare(self) -> str:
        """Without sizes."""
        return self.name if self.module is None else f"{self.module}:{self.name}"


def spellings(text: str) -> list[Spelling]:
    """The cells that a text names; those of a stack stand between plus signs, the lowest first.

    >>> spellings("lstm:28,256")[0].sizes
    (28, 256)
    >>> [one.bare for one in spellings("my_model:Leaky:3,64+gru")]
    ['my_model:Leaky', 'gru']
    """
    return [_spelling(part.strip(), text) for part in text.split("+")]


def _spelling(part: str, text: str) -> Spelling:
    first, *others = (piece.strip() for piece in part.split(":"))
    own = bool(others) and _NAME.fullmatch(others[0]) is not None
    module, name, rest = (first, others[0], others[1:]) if own else (None, first, others)
    if not name or first == "" or len(rest) > 1:
        raise ArgumentError(
            "this names no cell.",
            came=repr(text),
            expected="a built-in cell, as lstm or lstm:28,256; or one of your own, as my_model:Leaky:3,64,1",
        )
    sizes, options = _arguments(rest[0], part) if rest else ((), {})
    return Spelling(part, module, name, sizes, options)


def _arguments(text: str, part: str) -> tuple[tuple[float, ...], dict[str, object]]:
    sizes: list[float] = []
    options: dict[str, object] = {}
    for item in text.split(","):
        name, equals, value = (piece.strip() for piece in item.partition("="))
        if equals and name.isidentifier():
            options[name] = _value(value)
        else:
            sizes.append(_number(item.strip(), part))
    return tuple(sizes), options


def _number(item: str, part: str) -> float:
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


def _value(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
