"""A picture in Graphviz's language DOT: rows from bottom to top, one black square per source and delay.

Graphviz finds the coordinates. Names are escaped, so that each is shown as it is written, and their indices are set
below. Borders of windows are not drawn: the language has no line beside a node, but the arrows that are cut show where
windows end.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import pairwise

from leporello.draw.picture import Line, Name, Picture, Spot, delays, has_index

SHAPE_ATTRIBUTES: Mapping[str, dict[str, object]] = {
    "circle": {"shape": "circle"},
    "box": {"shape": "box"},
    "parameter": {"shape": "box", "style": "filled", "fillcolor": "grey85"},
    "operator": {"shape": "circle"},
    "point": {"shape": "point", "width": 0.1},
    "card": {"shape": "box", "style": "rounded"},
}
SQUARE_ATTRIBUTES: dict[str, object] = {
    "label": "",
    "shape": "square",
    "style": "filled",
    "fillcolor": "black",
    "fixedsize": True,
    "width": 0.15,
    "height": 0.15,
}
LINE_ATTRIBUTES: Mapping[str, dict[str, object]] = {
    "forward": {},
    "gradient": {"dir": "back", "style": "dashed", "constraint": False},
    "cut": {"dir": "back", "style": "dotted", "color": "grey60", "constraint": False},
}
TINTED_SHAPES = ("circle", "box", "operator", "card")  # parameters stay grey, points black
# For the tints of the legend, in its order: attributes of spots, attributes of lines. Widths differ as well as colours.
TINTS: tuple[tuple[dict[str, object], dict[str, object]], ...] = (
    ({"fillcolor": "#f7d3b0", "penwidth": 2.5}, {"penwidth": 2.5}),
    ({"fillcolor": "#d6e6f5", "penwidth": 1}, {"penwidth": 1}),
    ({"fillcolor": "#e0e0e0", "penwidth": 4}, {"penwidth": 4}),
    ({"fillcolor": "#ffffff", "penwidth": 0.5}, {"penwidth": 0.5}),
)


def dot(picture: Picture) -> str:
    """The picture as a `digraph`."""
    writer = _DotWriter(picture)
    return "\n".join(["digraph {", *(f"  {statement}" for statement in writer.statements()), "}"]) + "\n"


class _DotWriter:
    """Writes the statements of one picture; squares, captions and the legend get ids that no spot has."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.spots = {spot.id: spot for spot in picture.spots}
        self.used_ids = set(self.spots)
        self.squares = {
            source: [self._unused_id(f"{source} delay {number}") for number in range(1, count + 1)]
            for source, count in delays(picture.lines).items()
        }
        self.joined = {(line.source, line.target) for line in picture.lines if line.kind == "forward"}
        self.tints = dict(zip(picture.legend, TINTS, strict=False))

    def _unused_id(self, id: str) -> str:
        while id in self.used_ids:
            id += "'"
        self.used_ids.add(id)
        return id

    def statements(self) -> list[str]:
        return [
            f"graph [{_attributes({'label': self.picture.title, 'labelloc': 't', 'rankdir': 'BT'})}];",
            f"node [{_attributes({'fontsize': 10, 'margin': 0.03, 'width': 0.5})}];",
            f"edge [{_attributes({'fontsize': 10, 'arrowsize': 0.7})}];",
            *(self._spot(spot) for spot in self.picture.spots),
            *(self._node(square, SQUARE_ATTRIBUTES) for chain in self.squares.values() for square in chain),
            *self._chains(),
            *(self._line(line) for line in self.picture.lines),
            *self._rows(),
            *self._captions(),
            *self._legend(),
        ]

    def _spot(self, spot: Spot) -> str:
        plain = "\n".join(spot.lines) if spot.numbers or spot.caption else str(spot.name)
        words = _with_indices([[part] for part in spot.written], plain)
        attributes = {("xlabel" if spot.shape == "point" else "label"): words, **SHAPE_ATTRIBUTES[spot.shape]}
        if spot.tint in self.tints and spot.shape in TINTED_SHAPES:
            attributes |= {"style": "filled", **self.tints[spot.tint][0]}
        if spot.dashed:
            attributes["style"] = "filled,dashed" if "fillcolor" in attributes else "dashed"
        if spot.tooltip:
            attributes["tooltip"] = spot.tooltip
        return self._node(spot.id, attributes)

    def _chains(self) -> list[str]:
        """Edges from each source through its squares."""
        attributes = {"arrowhead": "none", "constraint": False}
        return [
            self._edge(before, after, attributes)
            for source, chain in self.squares.items()
            for before, after in pairwise([source, *chain])
        ]

    def _line(self, line: Line) -> str:
        source, target = self.spots[line.source], self.spots[line.target]
        start = self.squares[line.source][line.delay - 1] if line.delay else line.source
        attributes: dict[str, object] = {"label": _with_indices([line.names], line.label)} if line.names else {}
        if line.tint in self.tints:
            attributes |= self.tints[line.tint][1]
        along_row = line.kind == "forward" and source.place == target.place
        is_backward = along_row and (line.delay or source.column > target.column)
        orders_row = along_row and not line.delay and source.column < target.column
        if (line.delay or source.column != target.column or source.above) and not orders_row:
            attributes["constraint"] = False  # Graphviz takes the weight with it: such an arrow orders nothing
        if is_backward:
            attributes["weight"] = 0  # it goes against the order of its row, and must not reverse it
        attributes |= LINE_ATTRIBUTES[line.kind]
        if line.tooltip:
            attributes["tooltip"] = line.tooltip
        if line.kind == "forward":
            return self._edge(start, line.target, attributes)
        return self._edge(line.target, start, attributes)  # parallel to its arrow, with the arrowhead at the tail

    def _rows(self) -> list[str]:
        """Ranks: a value in all columns and its squares at one height; a spot above its reader at the very top."""
        rows: dict[str, list[Spot]] = {}
        for spot in self.picture.spots:
            rows.setdefault(spot.place, []).append(spot)
        statements = []
        for row in rows.values():
            row = sorted(row, key=lambda spot: spot.column)
            members = [id for spot in row for id in (spot.id, *self.squares.get(spot.id, ()))]
            if len(members) > 1 or row[0].above:
                rank = "sink" if row[0].above else "same"
                statements.append(f"{{ rank={rank}; {' '.join(_quoted(id) + ';' for id in members)} }}")
                statements += self._order_edges(row)
        return statements

    def _order_edges(self, row: list[Spot]) -> list[str]:
        """Invisible edges that keep the columns of a row in order where no arrow does."""
        pairs = [(one.id, two.id) for one, two in pairwise(row) if one.column < two.column]
        return [self._edge(*pair, {"style": "invis"}) for pair in pairs if pair not in self.joined]

    def _captions(self) -> list[str]:
        statements = []
        for column, words in self.picture.captions.items():
            id = self._unused_id(f"caption {column}")
            statements.append(self._node(id, {"label": words, "shape": "plaintext"}))
            statements.append(f"{{ rank=source; {_quoted(id)}; }}")
            above = next((spot.id for spot in self.picture.spots if spot.column == column and not spot.above), None)
            if above is not None:
                statements.append(self._edge(id, above, {"style": "invis"}))
        return statements

    def _legend(self) -> list[str]:
        return [
            self._node(
                self._unused_id(f"legend {tint}"),
                {"label": self.picture.legend[tint], "shape": "box", "style": "filled", **attributes},
            )
            for tint, (attributes, _) in self.tints.items()
        ]

    def _node(self, id: str, attributes: Mapping[str, object]) -> str:
        return f"{_quoted(id)} [{_attributes(attributes)}];"

    def _edge(self, source: str, target: str, attributes: Mapping[str, object]) -> str:
        suffix = f" [{_attributes(attributes)}]" if attributes else ""
        return f"{_quoted(source)} -> {_quoted(target)}{suffix};"


def _attributes(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={_value(key, value)}" for key, value in attributes.items())


class _Html(str):
    """A label in Graphviz's HTML-like language."""


def _with_indices(lines: Sequence[Sequence[Name | str]], plain: str) -> str:
    """A label with its indices below, as HTML; the plain text if it has none, or letters that HTML would change."""
    texts = [str(part) for line in lines for part in line]
    is_safe = all(text.isprintable() and "\\" not in text for text in texts)
    if not (is_safe and has_index(part for line in lines for part in line)):
        return plain
    return _Html("<BR/>".join(", ".join(map(_html, line)) for line in lines))


def _html(part: Name | str) -> str:
    if isinstance(part, str):
        return html.escape(part, quote=False)
    name = part.set
    base, below, time = (html.escape(text, quote=False) for text in (name.base, name.below, name.time))
    return base + (f"<SUB>{below}</SUB>" if below else "") + (f"({time})" if time else "")


def _value(key: str, value: object) -> str:
    if isinstance(value, _Html):
        return f"<{value}>"
    if key in ("label", "xlabel", "tooltip"):
        return _text(str(value))
    return str(value).lower() if isinstance(value, (bool, int, float)) else _quoted(str(value))


def _text(words: str) -> str:
    """A quoted label that is shown as it is: Graphviz would replace escapes such as \\N and entities such as &lt;."""
    return _quoted(words.replace("&", "&amp;"))


def _quoted(words: str) -> str:
    """A quoted string on one line; backslashes are doubled, so that none escapes the closing quote."""
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\0", "\N{SYMBOL FOR NULL}")):
        words = words.replace(character, escape)
    return f'"{words}"'
