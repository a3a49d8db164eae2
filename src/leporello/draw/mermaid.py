"""A picture in Mermaid's language: a folded picture from bottom to top, a strip from left to right.

Mermaid finds the coordinates. Characters that Mermaid, or the Markdown inside its labels, would interpret are escaped.
The language has no rows: the columns of a strip follow from its arrows. Tooltips and borders of windows are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from leporello.draw.picture import Line, Name, Picture, Spot, delays, has_index

BRACKETS: Mapping[str, tuple[str, str]] = {  # around the label of each shape
    "circle": ("((", "))"),
    "box": ("[", "]"),
    "parameter": ("[", "]"),
    "operator": ("((", "))"),
    "point": ("((", "))"),
    "card": ("(", ")"),
}
ARROWS: Mapping[str, str] = {"forward": "-->", "gradient": "-.->", "cut": "-.-x"}
# A page may be light or dark: filled nodes have a text colour of their own, black ones a border that shows on both.
STYLES: Mapping[str, str] = {
    "delay": "fill:#000,stroke:#888",
    "dashed": "stroke-dasharray:4 3",
    "parameter": "fill:#ddd,color:#000",
    "point": "fill:#000,stroke:#888,color:#fff",
    "caption": "fill:none,stroke:none",
}
# For the tints of the legend, in its order; widths of borders differ as well as colours.
TINTS = (
    "fill:#f7d3b0,stroke-width:3px,color:#000",
    "fill:#d6e6f5,stroke-width:1px,color:#000",
    "fill:#e0e0e0,stroke-width:5px,color:#000",
)

# Characters that are not escaped: letters, a space between words, brackets and commas, `t+1`, `(...)` and `from_x`.
UNESCAPED = re.compile(r"[^\W_]|(?<=\S) (?=\S)|[(),]|(?<=[A-Za-z(])[-+]|(?<=[(.])\.|(?<=[^\W_])_(?=[^\W_])")
LIST_ITEM = re.compile(r"[0-9]+\)")  # Markdown would make it a numbered list


def mermaid(picture: Picture) -> str:
    """The picture as a `flowchart`."""
    return "\n".join(_MermaidWriter(picture).lines()) + "\n"


class _MermaidWriter:
    """Writes the lines of one picture. Ids are n0, n1 and so on: names of the user are in labels only."""

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
            *_accessible_text("accTitle", self.picture.title),
            *_accessible_text("accDescr", self.picture.description),
            *(self._spot(spot) for spot in self.picture.spots),
            *(f'{id}[" "]' for id in self.squares.values()),
            *self._arrows(),
            *self._captions(),
            *self._legend(),
            *self._classes(),
        ]
        return [*self._title(), f"flowchart {direction}", *(f"  {line}" for line in body)]

    def _title(self) -> list[str]:
        """The title above the drawing, escaped for YAML."""
        if not self.picture.title:
            return []
        words = re.sub(r"[^\w (),.+-]", lambda match: f"\\U{ord(match[0]):08x}", self.picture.title)
        return ["---", f'title: "{words}"', "---"]

    def _spot(self, spot: Spot) -> str:
        left, right = BRACKETS[spot.shape]
        plain = "\n".join(spot.lines) if spot.numbers or spot.caption else str(spot.name)
        words = _with_indices([[part] for part in spot.written], plain)
        return f'{self.ids[spot.id]}{left}"{words}"{right}'

    def _arrows(self) -> list[str]:
        chains = [
            f"{self.squares.get((source, number - 1), self.ids[source])} --- {square}"
            for (source, number), square in self.squares.items()
        ]
        return [*chains, *map(self._arrow, self.picture.lines)]

    def _arrow(self, line: Line) -> str:
        start = self.squares[line.source, line.delay] if line.delay else self.ids[line.source]
        label = f'|"{_with_indices([line.names], line.label)}"|' if line.names else ""
        return f"{start} {ARROWS[line.kind]}{label} {self.ids[line.target]}"

    def _captions(self) -> list[str]:
        lines = []
        for index, (column, words) in enumerate(self.picture.captions.items()):
            lines.append(f'c{index}["{_escaped(words)}"]')
            lines += [f"c{index} ~~~ {self.ids[spot.id]}" for spot in self.picture.spots if spot.column == column][:1]
        return lines

    def _legend(self) -> list[str]:
        return [
            f'l{index}["{_escaped(self.picture.legend[tint])}"]:::{name}'
            for index, (tint, name) in enumerate(self.tints.items())
        ]

    def _classes(self) -> list[str]:
        """Styles of nodes by class, and the widths of tinted arrows."""
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
        styles = {**STYLES, **dict(zip(self.tints.values(), TINTS, strict=False))}
        used = {name: ids for name, ids in members.items() if ids}
        return [
            *(f"classDef {name} {styles[name]}" for name in used),
            *(f"class {','.join(ids)} {name}" for name, ids in used.items()),
            *self._line_widths(),
        ]

    def _line_widths(self) -> list[str]:
        first = len(self.squares)  # the links of squares are numbered first
        statements = []
        for tint, style in zip(self.tints, TINTS, strict=False):
            numbers = [str(first + index) for index, line in enumerate(self.picture.lines) if line.tint == tint]
            if numbers:
                statements.append(f"linkStyle {','.join(numbers)} {style.split(',')[1]}")
        return statements


def _accessible_text(key: str, words: str) -> list[str]:
    """The line with a text for screen readers; none for an empty text."""
    return [f"{key}: {_escaped(words, ' ')}"] if words.strip() else []


def _with_indices(lines: Sequence[Sequence[Name | str]], plain: str) -> str:
    """An escaped label with its indices below; the plain text, escaped, if it has none."""
    if not has_index(part for line in lines for part in line):
        return _escaped(plain)
    return "<br>".join(", ".join(map(_escaped_part, line)) for line in lines)


def _escaped_part(part: Name | str) -> str:
    if isinstance(part, str):
        return _escaped_line(part)
    name = part.set
    below = f"<sub>{_escaped_line(name.below)}</sub>" if name.below else ""
    return _escaped_line(name.base) + below + (_escaped_line(f"({name.time})") if name.time else "")


def _escaped(words: str, newline: str = "<br>") -> str:
    """A text that is shown as it is: characters are escaped by code point where needed; empty text is a blank."""
    return newline.join(_escaped_line(line) for line in words.split("\n")) or " "


def _escaped_line(words: str) -> str:
    plain = {match.start() for match in UNESCAPED.finditer(words)}
    if list_item := LIST_ITEM.match(words):
        plain.remove(list_item.end() - 1)
    return "".join(
        letter
        if index in plain or (ord(letter) > 127 and letter.isprintable() and letter not in "°¶")
        else f"#{ord(letter)};"
        for index, letter in enumerate(words)
    )
