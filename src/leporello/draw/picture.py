"""`Picture`: what is drawn, as data: spots in columns, lines between them, squares on delays.

A picture has no coordinates: `picture_layout` finds them, and the writers (`svg`, `terminal`, `dot`, `mermaid`) draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Shape = Literal["circle", "box", "parameter", "operator", "point", "card"]
Kind = Literal["forward", "gradient", "cut"]


@dataclass(frozen=True)
class Name:
    """A name as in a textbook: `h` with an index below and a time in brackets."""

    base: str
    below: str = ""
    time: str = ""

    def __str__(self) -> str:
        return f"{self.base}{self.below}" + (f"({self.time})" if self.time else "")


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
    tint: str = ""
    tooltip: str = ""
    numbers: tuple[Numbers, ...] = ()
    caption: str = ""
    caption_below: bool = False

    @property
    def lines(self) -> list[str]:
        """All that is written on it, line by line, for formats without colours: the name first."""
        found = [" ".join(str(self.name).split())]
        for block in self.numbers:
            found += [str(block.head)] if block.head is not None else []
            found += [" ".join(row) for row in aligned(block.texts)]
        return [*found, self.caption] if self.caption else found


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
