"""A picture in Graphviz's language: rows from bottom to top, one black square per source and delay.

Knows what Graphviz reads as an escape, so that every name comes out as it is written; Graphviz finds the places.
Borders of windows are not drawn: the language has no line beside a node. The cut arrows show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from leporello.draw.picture import Line, Picture, Spot, delays

SHAPES: Mapping[str, dict[str, object]] = {
    "circle": {"shape": "circle"},
    "box": {"shape": "box"},
    "parameter": {"shape": "box", "style": "filled", "fillcolor": "grey85"},
    "operator": {"shape": "circle"},
    "point": {"shape": "point", "width": 0.1},
}
SQUARE: dict[str, object] = {
    "label": "",
    "shape": "square",
    "style": "filled",
    "fillcolor": "black",
    "fixedsize": True,
    "width": 0.15,
    "height": 0.15,
}
KINDS: Mapping[str, dict[str, object]] = {
    "forward": {},
    "gradient": {"dir": "back", "style": "dashed", "constraint": False},
    "cut": {"dir": "back", "style": "dotted", "color": "grey60", "constraint": False},
}
TINTED = ("circle", "box", "operator")  # parameters stay grey, points black
# The legend's tints, in its order: a fill for spots and a pen for both, so that they differ without colour too.
TINTS: tuple[tuple[dict[str, object], dict[str, object]], ...] = (
    ({"fillcolor": "#f7d3b0", "penwidth": 2.5}, {"penwidth": 2.5}),
    ({"fillcolor": "#d6e6f5", "penwidth": 1}, {"penwidth": 1}),
    ({"fillcolor": "#e0e0e0", "penwidth": 4}, {"penwidth": 4}),
    ({"fillcolor": "#ffffff", "penwidth": 0.5}, {"penwidth": 0.5}),
)


def dot(picture: Picture) -> str:
    """The picture as a `digraph`."""
    writer = _Writer(picture)
    return "\n".join(["digraph {", *(f"  {statement}" for statement in writer.statements()), "}"]) + "\n"


class _Writer:
    """Statements of one picture; squares, captions and the legend get names that no spot has."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.spots = {spot.id: spot for spot in picture.spots}
        self.taken = set(self.spots)
        self.squares = {
            source: [self._free(f"{source} delay {number}") for number in range(1, count + 1)]
            for source, count in delays(picture.lines).items()
        }
        self.joined = {(line.source, line.target) for line in picture.lines}
        self.tints = dict(zip(picture.legend, TINTS, strict=False))

    def _free(self, id: str) -> str:
        while id in self.taken:
            id += "'"
        self.taken.add(id)
        return id

    def statements(self) -> list[str]:
        return [
            f"graph [{_attributes({'label': self.picture.title, 'labelloc': 't', 'rankdir': 'BT'})}];",
            f"node [{_attributes({'fontsize': 10, 'margin': 0.03, 'width': 0.5})}];",
            f"edge [{_attributes({'fontsize': 10, 'arrowsize': 0.7})}];",
            *(self._spot(spot) for spot in self.picture.spots),
            *(self._node(square, SQUARE) for chain in self.squares.values() for square in chain),
            *self._chains(),
            *(self._line(line) for line in self.picture.lines),
            *self._rows(),
            *self._captions(),
            *self._legend(),
        ]

    def _spot(self, spot: Spot) -> str:
        attributes = {("xlabel" if spot.shape == "point" else "label"): str(spot.name), **SHAPES[spot.shape]}
        if spot.tint in self.tints and spot.shape in TINTED:
            attributes |= {"style": "filled", **self.tints[spot.tint][0]}
        if spot.dashed:
            attributes["style"] = "filled,dashed" if "fillcolor" in attributes else "dashed"
        if spot.tooltip:
            attributes["tooltip"] = spot.tooltip
        return self._node(spot.id, attributes)

    def _chains(self) -> list[str]:
        """From each source through its squares."""
        plain = {"arrowhead": "none", "constraint": False}
        return [
            self._edge(before, after, plain)
            for source, chain in self.squares.items()
            for before, after in pairwise([source, *chain])
        ]

    def _line(self, line: Line) -> str:
        source, target = self.spots[line.source], self.spots[line.target]
        start = self.squares[line.source][line.delay - 1] if line.delay else line.source
        attributes: dict[str, object] = {"label": line.label} if line.names else {}
        if line.tint in self.tints:
            attributes |= self.tints[line.tint][1]
        if line.delay or source.column != target.column or source.above:
            attributes["constraint"] = False
        against = source.place == target.place and (line.delay or source.column > target.column)
        if against and line.kind == "forward":
            attributes["weight"] = 0  # against the order of its row, which it must not turn round
        attributes |= KINDS[line.kind]
        if line.tooltip:
            attributes["tooltip"] = line.tooltip
        if line.kind == "forward":
            return self._edge(start, line.target, attributes)
        return self._edge(line.target, start, attributes)  # beside its arrow, with the head at the tail

    def _rows(self) -> list[str]:
        """What stands at one height: a value in all columns and its squares; a target at the very top."""
        rows: dict[str, list[Spot]] = {}
        for spot in self.picture.spots:
            rows.setdefault(spot.place, []).append(spot)
        found = []
        for row in rows.values():
            row = sorted(row, key=lambda spot: spot.column)
            members = [id for spot in row for id in (spot.id, *self.squares.get(spot.id, ()))]
            if len(members) > 1 or row[0].above:
                rank = "sink" if row[0].above else "same"
                found.append(f"{{ rank={rank}; {' '.join(_quoted(id) + ';' for id in members)} }}")
                found += self._held_in_order(row)
        return found

    def _held_in_order(self, row: list[Spot]) -> list[str]:
        """A row keeps the order of its columns: by its own arrows, or by invisible ones."""
        pairs = [(one.id, two.id) for one, two in pairwise(row) if one.column < two.column]
        return [self._edge(*pair, {"style": "invis"}) for pair in pairs if pair not in self.joined]

    def _captions(self) -> list[str]:
        found = []
        for column, words in self.picture.captions.items():
            id = self._free(f"caption {column}")
            found.append(self._node(id, {"label": words, "shape": "plaintext"}))
            found.append(f"{{ rank=source; {_quoted(id)}; }}")
            above = next((spot.id for spot in self.picture.spots if spot.column == column and not spot.above), None)
            if above is not None:
                found.append(self._edge(id, above, {"style": "invis"}))
        return found

    def _legend(self) -> list[str]:
        return [
            self._node(
                self._free(f"legend {tint}"),
                {"label": self.picture.legend[tint], "shape": "box", "style": "filled", **attributes},
            )
            for tint, (attributes, _) in self.tints.items()
        ]

    def _node(self, id: str, attributes: Mapping[str, object]) -> str:
        return f"{_quoted(id)} [{_attributes(attributes)}];"

    def _edge(self, source: str, target: str, attributes: Mapping[str, object]) -> str:
        written = f" [{_attributes(attributes)}]" if attributes else ""
        return f"{_quoted(source)} -> {_quoted(target)}{written};"


def _attributes(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={_value(key, value)}" for key, value in attributes.items())


def _value(key: str, value: object) -> str:
    if key in ("label", "xlabel", "tooltip"):
        return _text(str(value))
    return str(value).lower() if isinstance(value, (bool, int, float)) else _quoted(str(value))


def _text(words: str) -> str:
    """A label that reads as it is written: no escape such as \\N, no entity such as &lt;."""
    return _quoted(words.replace("&", "&amp;"))


def _quoted(words: str) -> str:
    """In quotes, on one line; a backslash is doubled, so that none stands alone before the closing quote."""
    for sign, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\0", "\N{SYMBOL FOR NULL}")):
        words = words.replace(sign, written)
    return f'"{words}"'
