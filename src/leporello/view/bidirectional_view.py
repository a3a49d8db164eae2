"""Pictures of a bidirectional net: two loops that share their inputs, one from the beginning and one from the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from leporello.draw.image_files import Svg
from leporello.draw.picture import Name, Picture
from leporello.loop.loop import Loop
from leporello.loop.unfold import unfold
from leporello.view.diagram import Diagram, Edge, Vertex
from leporello.view.drawable import Detail, Drawable, animation, diagram, loop_picture, strip_picture

ARROWS = {"ahead": "→", "back": "←"}


@dataclass(frozen=True, eq=False, repr=False)
class BothWays(Drawable):
    """A bidirectional net, folded. Values of the loop that runs ahead have → below their names, the others ←.

    ahead, back   the two loops
    """

    ahead: Loop
    back: Loop

    def __repr__(self) -> str:
        return f"<BothWays: {self.ahead!r}, {self.back!r}>"

    @property
    def name(self) -> str:
        return self.ahead.name if self.ahead.name == self.back.name else f"{self.ahead.name} and {self.back.name}"

    def picture(self, detail: Detail = "textbook") -> Picture:  # type: ignore[override]
        """Both circuits on one input, with a black square on every delay."""
        return loop_picture(self._title, joined(self, detail))

    @property
    def _title(self) -> str:
        return f"{self.name} in both directions"

    def unfold(self, steps: int) -> BothStrips:
        """The strip of a number of steps, to be drawn."""
        unfold(self.ahead, steps)  # raises where `steps` is no length
        return BothStrips(self, steps)


@dataclass(frozen=True, eq=False, repr=False)
class BothStrips(Drawable):
    """A bidirectional net, unfolded."""

    net: BothWays
    steps: int

    def __repr__(self) -> str:
        return f"<BothStrips of {self.net.name}: {self.steps} steps>"

    def picture(self, detail: Detail = "textbook", **options: Any) -> Picture:
        """The strip as spots and lines; options as for the strip of a loop."""
        return strip_picture(self.net._title, joined(self.net, detail, is_unfolded=True), self.steps, **options)

    def animate(self) -> Svg:
        """One animated SVG: the loops fold open."""
        return animation(self.net._title, joined(self.net, "textbook"), self.steps)


def joined(net: BothWays, detail: str, *, is_unfolded: bool = False) -> Diagram:
    """The diagrams of both loops as one: inputs appear once, and one vertex o reads all outputs."""
    ahead = diagram(net.ahead, detail, is_unfolded=is_unfolded)
    back = diagram(net.back, detail, is_unfolded=is_unfolded)
    vertices: dict[str, Vertex] = {}
    edges: list[Edge] = []
    outputs = []
    for way, part in (("ahead", ahead), ("back", back)):
        keys = {vertex.key: _key(vertex, way) for vertex in part.vertices}
        for vertex in part.vertices:
            vertices[keys[vertex.key]] = replace(vertex, key=keys[vertex.key], name=_name(vertex, way))
        for edge in part.edges:
            names = tuple(_with_arrow(name, way) for name in edge.names)
            source, target = keys[edge.source], keys[edge.target]
            edges.append(replace(edge, source=source, target=target, names=names, reverse=way == "back"))
        outputs += [keys[key] for key in part.outputs]
    if outputs:
        shape = "box" if detail == "operators" else "circle"
        vertices["both.o"] = Vertex("both.o", Name("o"), shape=shape)  # type: ignore[arg-type]
        edges += [Edge(key, "both.o") for key in dict.fromkeys(outputs)]
    return Diagram(tuple(vertices.values()), tuple(edges), outputs=("both.o",) if outputs else ())


def _key(vertex: Vertex, way: str) -> str:
    return vertex.key if vertex.role == "input" else f"{way}.{vertex.key}"


def _name(vertex: Vertex, way: str) -> Name:
    return vertex.name if vertex.role == "input" or vertex.shape == "operator" else _with_arrow(vertex.name, way)


def _with_arrow(name: Name, way: str) -> Name:
    return replace(name, below=name.below + ARROWS[way])
