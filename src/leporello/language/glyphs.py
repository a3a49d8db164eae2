"""Text as it can be shown piece by piece: what has no shape gets one, and lines are broken by columns.

Chinese characters take two columns. Knows characters and columns; knows nothing of colours.
"""

from __future__ import annotations

import importlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from leporello.errors import ArgumentError, LeporelloError

SHAPES = {"\n": "⏎", "\t": "→", "\r": "␍", "\x7f": "␡", "\u2028": "⏎", "\u2029": "⏎"}
BREAKS = {"\n", "\u2028", "\u2029"}
# Signs that no line begins with.
CLOSING = set("，。、；：？！）》〉」』】〕”’…·—,.;:?!)]}%")


@dataclass(frozen=True)
class Glyph:
    """One character as it is shown.

    text     it, with what combines with it
    width    in columns
    piece    the index of the piece it belongs to
    ends     whether the line ends behind it
    """

    text: str
    width: int
    piece: int
    ends: bool = False


def shown(character: str) -> str:
    """A character in a form that can be seen: ⏎ for a newline, → for a tab, <200D> for what has no shape at all.

    >>> [shown(character) for character in ("a", "\\n", "\\x00", "\\u200d")]
    ['a', '⏎', '␀', '<200D>']
    """
    if character in SHAPES:
        return SHAPES[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return f"<{ord(character):04X}>"
    return character


def glyphs(pieces: Iterable[str]) -> Iterator[Glyph]:
    """The characters of all pieces; one that combines with what stands before it gets a circle to stand on."""
    columns: Callable[[str], int] = of_rich("cells", "cell_len")
    for index, piece in enumerate(pieces):
        waiting = ""
        for character in piece:
            if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
                waiting = (waiting or "◌") + character
                continue
            if waiting:
                yield Glyph(waiting, columns(waiting), index)
            waiting = shown(character)
            if character in BREAKS:
                yield Glyph(waiting, columns(waiting), index, ends=True)
                waiting = ""
        if waiting:
            yield Glyph(waiting, columns(waiting), index)


def lines(pieces: Iterable[str], width: int) -> list[list[Glyph]]:
    """The glyphs in lines of at most so many columns, broken behind spaces and beside wide characters.

    >>> ["".join(glyph.text for glyph in line) for line in lines(["床前", "明月", "光"], 6)]
    ['床前明', '月光']
    """
    if not isinstance(width, int) or isinstance(width, bool) or width < 2:
        raise ArgumentError("the argument 'width' is no width.", came=repr(width), expected="2 columns or more")
    found: list[list[Glyph]] = [[]]
    for glyph in glyphs(pieces):
        line = found[-1]
        while line and sum(other.width for other in line) + glyph.width > width:
            place = _place_to_break(line, glyph)
            found[-1], line = line[:place], line[place:]
            found.append(line)
        line.append(glyph)
        if glyph.ends:
            found.append([])
    return [line for line in found if line]


def _place_to_break(line: list[Glyph], following: Glyph) -> int:
    """How much of a full line stays: up to the last place where it may be broken, else all of it."""
    row = [*line, following]
    for place in range(len(line), 0, -1):
        before, behind = row[place - 1], row[place]
        if behind.text in CLOSING or behind.text == " ":
            continue
        if before.text == " " or before.width == 2 or behind.width == 2:
            return place
    return len(line)


def of_rich(module: str, name: str) -> Any:
    """A part of the package rich, which only terminals need."""
    try:
        return getattr(importlib.import_module(f"rich.{module}"), name)
    except ImportError as error:
        raise LeporelloError("coloured text needs the package rich.", tries="pip install 'leporello[cli]'") from error
