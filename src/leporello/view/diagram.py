"""`Diagram`: the vertices and edges that a picture of one step shows, before it is drawn folded or unfolded.

The three views make one each; what they share in reading a Loop's graph is here: masks looked through, delays followed
back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import fx

from leporello.draw.picture import Name, Shape
from leporello.errors import ArgumentError
from leporello.loop.graph import operator_name
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

VertexRole = Literal["input", "target", "state", "value", "parameter"]


@dataclass(frozen=True)
class Vertex:
    """A value of the step, or an operator.

    key        identifies it in the diagram
    stepwise   whether it must be computed step by step
    node       the name of the loop's node that has this value
    before     the same before the first step, of a state
    through    "exp" where the value is the exponential of the node's
    """

    key: str
    name: Name
    role: VertexRole = "value"
    shape: Shape = "circle"
    stepwise: bool = False
    tooltip: str = ""
    node: str = ""
    before: str = ""
    through: str = ""


@dataclass(frozen=True)
class Edge:
    """One value is read for another.

    names      the matrices it is multiplied by on the way
    delay      how many steps later it is read; earlier, where time runs backwards
    stepwise   whether what it stands for must be computed step by step
    reverse    whether time runs backwards on this edge alone
    """

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

    reverse          whether time runs backwards on all edges
    last_step_only   keys of vertices that only the last step has
    outputs          keys of vertices that are outputs
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    reverse: bool = False
    last_step_only: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()

    def is_reverse(self, edge: Edge) -> bool:
        return self.reverse or edge.reverse

    def vertex(self, key: str) -> Vertex:
        return next(vertex for vertex in self.vertices if vertex.key == key)


def keys_of_name(diagram: Diagram, name: str, argument: str) -> list[str]:
    """Keys of the vertices with a name as the picture shows it, or as the cell's code has it."""
    found = [
        vertex.key
        for vertex in diagram.vertices
        if vertex.shape in ("circle", "box") and name in (str(vertex.name), vertex.key.partition(".")[2])
    ]
    if not found:
        known = dict.fromkeys(str(vertex.name) for vertex in diagram.vertices if vertex.shape in ("circle", "box"))
        raise ArgumentError(
            f"the argument '{argument}' names what the picture does not show.",
            came=repr(name),
            expected="one of " + ", ".join(known),
        )
    return found


def delayed_sources(loop: Loop, *without: Role) -> dict[fx.Node, tuple[fx.Node, int]]:
    """For each state that a step reads: the value that it was when it was computed, and how many steps ago.

    States that are only passed on, to themselves or in a ring, are never computed: the source of such a state is the
    state that it is passed from, one step ago. `without` as for `unmasked_results`.
    """
    entering = {out: into for into, out in loop.delays.values()}
    masks = _masks(loop, without)
    sources = {}
    for out in entering:
        node, delay, seen = _unmasked(entering[out], masks), 1, {out}
        while node in entering and node not in seen:
            seen.add(node)
            node, delay = _unmasked(entering[node], masks), delay + 1
        sources[out] = (_unmasked(entering[out], masks), 1) if node in entering else (node, delay)
    return sources


def _masks(loop: Loop, without: tuple[Role, ...]) -> set[fx.Node]:
    """The inputs that are masks to look through: the padding mask, and those of the roles in `without`."""
    inputs = zip(loop.inputs, loop.placeholders, strict=True)
    return {node for port, node in inputs if port.role in (Role.PAST, *without)}


def _unmasked(node: fx.Node, masks: set[fx.Node]) -> fx.Node:
    """The value that a masked one is where the mask is false."""
    while node.op == "call_function" and operator_name(node) in ("where", "masked_fill"):
        condition, other = (
            (node.args[0], node.args[2]) if operator_name(node) == "where" else (node.args[1], node.args[0])
        )
        if _mask(condition) not in masks:
            return node
        node = other  # type: ignore[assignment]
    return node


def unmasked_results(loop: Loop, *without: Role) -> list[fx.Node]:
    """The loop's results as they are before a row's end; `without` are roles of other masks to look through."""
    masks = _masks(loop, without)
    return [_unmasked(node, masks) for node in loop.results]


def _mask(node: object) -> object:
    """The input that a condition comes from, perhaps through views or masks of its own."""
    while isinstance(node, fx.Node) and node.op == "call_function":
        node = node.args[0]
    return node


def with_distinct_names(vertices: Iterable[Vertex]) -> list[Vertex]:
    """The vertices with no name twice: of two with one name, the one that is no output gets a prime."""
    in_order = list(vertices)
    renamed: dict[str, Vertex] = {}
    taken: set[Name] = set()
    for vertex in sorted(in_order, key=lambda vertex: not vertex.key.startswith("output.")):
        name = vertex.name
        while name in taken:
            name = replace(name, base=name.base + "'")
        taken.add(name)
        renamed[vertex.key] = replace(vertex, name=name)
    return [renamed[vertex.key] for vertex in in_order]


def is_target(port: Port) -> bool:
    """Whether an input is a true value: what a loss compares with, or what is fed back."""
    return port.role in (Role.TARGET, Role.LOSS_TARGET)


def last_step_vertices(loop: Loop, edges: Iterable[Edge]) -> set[str]:
    """Keys of outputs that only the last step computes; one that every step reads is none of them."""
    keys = {f"output.{name}" for name in loop.last_step_outputs}
    while read_before := {edge.source for edge in edges if edge.source in keys and edge.target not in keys}:
        keys -= read_before
    return keys


def varying_values(loop: Loop) -> set[fx.Node]:
    """The values that differ from step to step: those computed from other inputs than invariants."""
    varying = {node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.kind != "invariant"}
    for node in loop.nodes:
        if any(source in varying for source in node.all_input_nodes):
            varying.add(node)
    return varying
