"""`Picture`: what is drawn, as data: spots in columns, lines between them, squares on delays.

A picture has no coordinates: `picture_layout` finds them, and the writers (`svg`, `terminal`, `dot`, `mermaid`) draw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Shape = Literal["circle", "box", "parameter", "operator", "point", "card"]
Kind = Literal["forward", "gradient", "cut"]


INDEXED = re.compile(r"((?:∂L/∂)?[^\W_]{1,3})_([^\W_]{1,4})('*)")  # W_xh, b_h, ∂L/∂h_t; not new_state


@dataclass(frozen=True)
class Name:
    """A name as in a textbook: `h` with an index below and a time in brackets."""

    base: str
    below: str = ""
    time: str = ""

    def __str__(self) -> str:
        return f"{self.base}{self.below}" + (f"({self.time})" if self.time else "")

    @property
    def set(self) -> Name:
        """The name as it is set in type: xh of `W_xh` is an index below, as is t of `h_t`."""
        found = INDEXED.fullmatch(self.base)
        if found is None:
            return self
        below = f"{found[2]},{self.below}" if self.below else found[2]
        return Name(found[1] + found[3], below, self.time)


def has_index(parts: Iterable[Name | str]) -> bool:
    """Whether a name among these has an index, and nothing has a line break, which formats with indices write apart."""
    parts = list(parts)
    return any(isinstance(part, Name) and part.set.below for part in parts) and "\n" not in "".join(map(str, parts))


@dataclass(frozen=True)
class Numbers:
    """A vector or a matrix that is written on a spot.

    head     what it is called; the spot's own name where it has none
    texts    its rows, each a number in every column; or one text that says how large it is
    levels   the same as colours: from -LEVELS to LEVELS, 0 for no colour
    """

    texts: tuple[tuple[str, ...], ...]
    levels: tuple[tuple[int, ...], ...]
    head: Name | None = None


LEVELS = 3  # colours of either sign


@dataclass(frozen=True)
class Spot:
    """A circle, a box, a point, or a card: a name with numbers below it.

    id       unique in the picture
    place    which value of the step it is: the same in every column
    column   the time step it belongs to, counted from the left
    above    whether it is drawn above its readers, as targets are
    rail     whether it belongs to all columns: its lines run along a row of its own, which is at the bottom for what
             every step reads, at the top for what every step adds to
    dashed   whether it only hints at a step that is not drawn
    tint     a key of the picture's legend
    numbers  what is written on a card
    caption  a word beside it, such as the token that it stands for: below it, else above it
    """

    id: str
    name: Name
    place: str
    column: int = 0
    shape: Shape = "circle"
    above: bool = False
    dashed: bool = False
    rail: bool = False
    tint: str = ""
    tooltip: str = ""
    numbers: tuple[Numbers, ...] = ()
    caption: str = ""
    caption_below: bool = False

    @property
    def written(self) -> list[Name | str]:
        """All that is written on it, line by line, for formats without colours: the name first."""
        found: list[Name | str] = [self.name]
        for block in self.numbers:
            found += [block.head] if block.head is not None else []
            found += [" ".join(row) for row in aligned(block.texts)]
        return [*found, self.caption] if self.caption else found

    @property
    def lines(self) -> list[str]:
        """The same as plain text; the name is on one line."""
        return [" ".join(str(self.name).split()), *map(str, self.written[1:])]


def aligned(rows: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    """Rows of texts, those of a column made equally long with blanks in front."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[text.rjust(width) for text, width in zip(row, widths, strict=True)] for row in rows]


@dataclass(frozen=True)
class Line:
    """An arrow between two spots.

    names   of the matrices that multiply along it: its label
    delay   number of steps, each drawn as a black square; 0 in an unfolded picture
    kind    "gradient": against a forward arrow and beside it; "cut": a gradient that is not propagated
    """

    source: str
    target: str
    names: tuple[Name, ...] = ()
    delay: int = 0
    kind: Kind = "forward"
    tint: str = ""
    tooltip: str = ""

    @property
    def label(self) -> str:
        return ", ".join(map(str, self.names))


@dataclass(frozen=True)
class Picture:
    """Spots and lines, with a title, and a description for screen readers.

    captions   texts below columns, by column
    legend     the meaning of each tint
    borders    columns at which a window begins
    scales     for each kind of numbers on cards: what they are, and the largest, which has the strongest colour
    """

    title: str
    description: str
    spots: tuple[Spot, ...]
    lines: tuple[Line, ...]
    captions: Mapping[int, str] = field(default_factory=dict)
    legend: Mapping[str, str] = field(default_factory=dict)
    borders: tuple[int, ...] = ()
    scales: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> int:
        return 1 + max((spot.column for spot in self.spots), default=0)

    def spot(self, id: str) -> Spot:
        return next(spot for spot in self.spots if spot.id == id)


def delays(lines: Iterable[Line]) -> dict[str, int]:
    """The number of squares after each source, which is its longest delay: its lines share them."""
    longest: dict[str, int] = {}
    for line in lines:
        if line.delay:
            longest[line.source] = max(line.delay, longest.get(line.source, 0))
    return longest


def raised(number: int) -> str:
    """A number in raised digits, which marks a label that has no room."""
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
