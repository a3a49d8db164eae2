"""A picture in Mermaid's language: folded from bottom to top, a strip from left to right.

Knows which signs Mermaid, and the Markdown inside its labels, would take for their own; Mermaid finds the places.
The language has no rows: columns of a strip follow from its arrows. Tooltips and borders of windows are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from leporello.draw.picture import Line, Picture, Spot, delays

SHAPES: Mapping[str, tuple[str, str]] = {  # what stands around a label
    "circle": ("((", "))"),
    "box": ("[", "]"),
    "parameter": ("[", "]"),
    "operator": ("((", "))"),
    "point": ("((", "))"),
}
ARROWS: Mapping[str, str] = {"forward": "-->", "gradient": "-.->", "cut": "-.-x"}
# A page may be light or dark: what is filled has its own ink, what is black a border that shows on both.
STYLES: Mapping[str, str] = {
    "delay": "fill:#000,stroke:#888",
    "dashed": "stroke-dasharray:4 3",
    "parameter": "fill:#ddd,color:#000",
    "point": "fill:#000,stroke:#888,color:#fff",
    "caption": "fill:none,stroke:none",
}
# The legend's tints, in its order: they differ without colour too.
TINTS = (
    "fill:#f7d3b0,stroke-width:3px,color:#000",
    "fill:#d6e6f5,stroke-width:1px,color:#000",
    "fill:#e0e0e0,stroke-width:5px,color:#000",
)
TINTED = ("circle", "box", "operator")  # parameters stay grey, points black

# Signs that stay as they are: letters, a space between words, brackets and commas, `t+1`, `(...)` and `from_x`.
PLAIN = re.compile(r"[^\W_]|(?<=\S) (?=\S)|[(),]|(?<=[A-Za-z(])[-+]|(?<=[(.])\.|(?<=[^\W_])_(?=[^\W_])")
NUMBERED = re.compile(r"[0-9]+\)")  # a list, to Markdown


def mermaid(picture: Picture) -> str:
    """The picture as a `flowchart`."""
    return "\n".join(_Writer(picture).lines()) + "\n"


class _Writer:
    """Lines of one picture. Names are made up, n0, n1 and so on: what a user calls a value stands in labels only."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.ids = {spot.id: f"n{index}" for index, spot in enumerate(picture.spots)}
        self.squares: dict[tuple[str, int], str] = {}
        for source, count in delays(picture.lines).items():
            for number in range(1, count + 1):
                self.squares[source, number] = f"d{len(self.squares)}"
        self.tints = {tint: f"tint{index}" for index, tint in enumerate(picture.legend) if index < len(TINTS)}

    def lines(self) -> list[str]:
        direction = "LR" if self.picture.columns > 1 else "BT"
        body = [
            *_told("accTitle", self.picture.title),
            *_told("accDescr", self.picture.description),
            *(self._spot(spot) for spot in self.picture.spots),
            *(f'{id}[" "]' for id in self.squares.values()),
            *self._arrows(),
            *self._captions(),
            *self._legend(),
            *self._classes(),
        ]
        return [*self._title(), f"flowchart {direction}", *(f"  {line}" for line in body)]

    def _title(self) -> list[str]:
        """The words above the drawing, in a form that YAML reads."""
        if not self.picture.title:
            return []
        words = re.sub(r"[^\w (),.+-]", lambda match: f"\\U{ord(match[0]):08x}", self.picture.title)
        return ["---", f'title: "{words}"', "---"]

    def _spot(self, spot: Spot) -> str:
        left, right = SHAPES[spot.shape]
        return f'{self.ids[spot.id]}{left}"{_escaped(str(spot.name))}"{right}'

    def _arrows(self) -> list[str]:
        chains = [
            f"{self.squares.get((source, number - 1), self.ids[source])} --- {square}"
            for (source, number), square in self.squares.items()
        ]
        return [*chains, *map(self._arrow, self.picture.lines)]

    def _arrow(self, line: Line) -> str:
        start = self.squares[line.source, line.delay] if line.delay else self.ids[line.source]
        label = f'|"{_escaped(line.label)}"|' if line.names else ""
        return f"{start} {ARROWS[line.kind]}{label} {self.ids[line.target]}"

    def _captions(self) -> list[str]:
        found = []
        for index, (column, words) in enumerate(self.picture.captions.items()):
            found.append(f'c{index}["{_escaped(words)}"]')
            found += [f"c{index} ~~~ {self.ids[spot.id]}" for spot in self.picture.spots if spot.column == column][:1]
        return found

    def _legend(self) -> list[str]:
        return [
            f'l{index}["{_escaped(self.picture.legend[tint])}"]:::{name}'
            for index, (tint, name) in enumerate(self.tints.items())
        ]

    def _classes(self) -> list[str]:
        """What nodes look like, and how thick tinted arrows are."""
        members: dict[str, list[str]] = {name: [] for name in (*STYLES, *self.tints.values())}
        members["delay"] += self.squares.values()
        members["caption"] += [f"c{index}" for index in range(len(self.picture.captions))]
        for spot in self.picture.spots:
            if spot.shape in ("parameter", "point"):
                members[spot.shape].append(self.ids[spot.id])
            elif spot.tint in self.tints:
                members[self.tints[spot.tint]].append(self.ids[spot.id])
            if spot.dashed:
                members["dashed"].append(self.ids[spot.id])
        looks = {**STYLES, **dict(zip(self.tints.values(), TINTS, strict=False))}
        used = {name: ids for name, ids in members.items() if ids}
        return [
            *(f"classDef {name} {looks[name]}" for name in used),
            *(f"class {','.join(ids)} {name}" for name, ids in used.items()),
            *self._pens(),
        ]

    def _pens(self) -> list[str]:
        first = len(self.squares)  # the arrows come after those through squares
        pens = []
        for tint, look in zip(self.tints, TINTS, strict=False):
            numbers = [str(first + index) for index, line in enumerate(self.picture.lines) if line.tint == tint]
            if numbers:
                pens.append(f"linkStyle {','.join(numbers)} {look.split(',')[1]}")
        return pens


def _told(key: str, words: str) -> list[str]:
    """What a screen reader says; it must be one line."""
    return [f"{key}: {_escaped(words, ' ')}"] if words.strip() else []


def _escaped(words: str, newline: str = "<br>") -> str:
    """A text whose every sign comes out as it is: what is not plain is written by its number; no text is a space."""
    return newline.join(_line(line) for line in words.split("\n")) or " "


def _line(words: str) -> str:
    plain = {match.start() for match in PLAIN.finditer(words)}
    if numbered := NUMBERED.match(words):
        plain.remove(numbered.end() - 1)
    return "".join(
        sign if index in plain or (ord(sign) > 127 and sign.isprintable() and sign not in "°¶") else f"#{ord(sign)};"
        for index, sign in enumerate(words)
    )
