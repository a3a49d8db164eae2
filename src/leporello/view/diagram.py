"""`Diagram`: what a picture of one step shows, before it is drawn folded or unfolded.

Knows vertices and edges with their delays; knows nothing of columns, shapes of paper or formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import fx

from leporello.draw.picture import Name, Shape
from leporello.loop.loop import Loop
from leporello.loop.port import Port

VertexRole = Literal["input", "target", "state", "value", "parameter"]


@dataclass(frozen=True)
class Vertex:
    """A value of the step, or an operator.

    key        its own
    stepwise   whether it must be computed step by step
    """

    key: str
    name: Name
    role: VertexRole = "value"
    shape: Shape = "circle"
    stepwise: bool = False
    tooltip: str = ""


@dataclass(frozen=True)
class Edge:
    """What one value is for another, so many steps later; earlier, where time runs backwards."""

    source: str
    target: str
    names: tuple[Name, ...] = ()
    delay: int = 0
    stepwise: bool = False
    tooltip: str = ""
    reverse: bool = False


@dataclass(frozen=True)
class Diagram:
    """Vertices and edges of one step.

    reverse   whether time runs backwards on all edges
    ended     keys of vertices that stand at the last step only
    outputs   keys of those that are outputs
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    reverse: bool = False
    ended: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()

    def is_reverse(self, edge: Edge) -> bool:
        return self.reverse or edge.reverse

    def vertex(self, key: str) -> Vertex:
        return next(vertex for vertex in self.vertices if vertex.key == key)


PAST, RESETS = "call.past", "call.reset"


def origins(loop: Loop, *without: str) -> dict[fx.Node, tuple[fx.Node, int]]:
    """For each state as a step reads it: the value it was, and how many steps ago.

    A state that steps only hand round, and never compute, is its own origin. `without` as for `held_results`.
    """
    entering = {out: into for into, out in loop.delays.values()}
    found = {}
    for out in entering:
        node, delay, seen = _held(entering[out], without), 1, {out}
        while node in entering and node not in seen:
            seen.add(node)
            node, delay = _held(entering[node], without), delay + 1
        found[out] = (_held(entering[out], without), 1) if node in entering else (node, delay)
    return found


def _held(node: fx.Node, without: tuple[str, ...]) -> fx.Node:
    """What a masked value is where the mask is false."""
    while node.op == "call_function" and spelling(node) in ("where", "masked_fill"):
        condition, other = (node.args[0], node.args[2]) if spelling(node) == "where" else (node.args[1], node.args[0])
        if _mask(condition) not in (PAST, *without):
            return node
        node = other  # type: ignore[assignment]
    return node


def held_results(loop: Loop, *without: str) -> list[fx.Node]:
    """The loop's results as they are before a row's end; `without` names other masks to look through."""
    return [_held(node, without) for node in loop.results]


def _mask(node: object) -> object:
    """The input that a condition is, perhaps seen another way or itself masked."""
    while isinstance(node, fx.Node) and node.op == "call_function":
        node = node.args[0]
    return node.meta.get("label") if isinstance(node, fx.Node) else None


def spelling(node: fx.Node) -> str:
    """An operator's short name: `mm`, `tanh`."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1] if schema is not None else getattr(node.target, "__name__", str(node.target))


def shown(names: Iterable[str]) -> dict[str, Name]:
    """Names of parameters and states as they are written: `U.weight` is U, `cells.0.U` is U with 0 below.

    Two that would look the same keep their dots.
    """
    full = list(dict.fromkeys(names))
    short = {name: _short(name) for name in full}
    counts = list(short.values())
    return {name: spelt if counts.count(spelt) == 1 else Name(_bare(name)) for name, spelt in short.items()}


def _bare(name: str) -> str:
    return name.removesuffix(".weight")


def _short(name: str) -> Name:
    parts = _bare(name).split(".")
    *before, last = parts
    if last.isdigit() and before:  # a tuple's leaf, or a layer of a Sequential
        *before, last = [*list(before[:-1]), last, before[-1]]
    return Name(last, ",".join(part for part in before if part.isdigit()))


def told_apart(vertices: Iterable[Vertex]) -> list[Vertex]:
    """Two values of one name: the one that is no output gets a prime."""
    given = list(vertices)
    found: dict[str, Vertex] = {}
    taken: set[Name] = set()
    for vertex in sorted(given, key=lambda vertex: not vertex.key.startswith("output.")):
        name = vertex.name
        while name in taken:
            name = replace(name, base=name.base + "'")
        taken.add(name)
        found[vertex.key] = replace(vertex, name=name)
    return [found[vertex.key] for vertex in given]


def is_target(loop: Loop, port: Port) -> bool:
    """Whether an input is a true value: what a loss compares with, or what is fed back."""
    return port.name == "call.target" or (port.name == "y" and any(out.name == "L" for out in loop.outputs))


def asked_at_the_end(loop: Loop, edges: Iterable[Edge]) -> set[str]:
    """Outputs that only the last step gives; one that every step reads is none of them."""
    found = {f"output.{name}" for name in loop.ended}
    while stray := {edge.source for edge in edges if edge.source in found and edge.target not in found}:
        found -= stray
    return found


def timed(loop: Loop) -> set[fx.Node]:
    """What differs from step to step."""
    found = {node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.kind != "invariant"}
    for node in loop.nodes:
        if any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found
