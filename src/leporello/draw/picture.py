"""`Picture`: what is drawn, as data: spots in columns, lines between them, squares on delays.

A picture has no coordinates: `picture_layout` finds them, and the writers (`svg`, `terminal`, `dot`, `mermaid`) draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Shape = Literal["circle", "box", "parameter", "operator", "point"]
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
class Spot:
    """A circle, a box or a point.

    id       unique in the picture
    place    which value of the step it is: the same in every column
    column   the time step it belongs to, counted from the left
    above    whether it is drawn above its readers, as targets are
    dashed   whether it only hints at a step that is not drawn
    tint     a key of the picture's legend
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
    """

    title: str
    description: str
    spots: tuple[Spot, ...]
    lines: tuple[Line, ...]
    captions: Mapping[int, str] = field(default_factory=dict)
    legend: Mapping[str, str] = field(default_factory=dict)
    borders: tuple[int, ...] = ()

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
