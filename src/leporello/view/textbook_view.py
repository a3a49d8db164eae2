"""The textbook's view of a step: the graph contracted onto its named values, with the matrices between them.

Vertices: inputs, states, outputs, the loss and its target, and those locals of the cell's own forward that a
parameter's product reads or that feed several other vertices. Everything else is an edge, or nothing.
"""

from __future__ import annotations

from torch import fx

from leporello.draw.picture import Name
from leporello.loop.loop import Loop
from leporello.loop.value_classes import is_view, values_on_cycles
from leporello.view.diagram import (
    RESETS,
    Diagram,
    Edge,
    Vertex,
    VertexRole,
    asked_at_the_end,
    held_results,
    is_target,
    origins,
    shown,
    spelling,
    timed,
    told_apart,
)

MOST = 3  # matrices written out on one edge

# Operators that multiply a value by a matrix, with the arguments that are factors.
FACTORS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "mv": (0, 1),
    "addmv": (1, 2),
    "mul": (0, 1),
    "convolution": (0, 1),
    "conv1d": (0, 1),
    "conv2d": (0, 1),
    "embedding": (0, 1),
    "index": (0, 1),
    "index_select": (0, 2),
}


def textbook(loop: Loop) -> Diagram:
    """The vertices of a step, and an edge wherever one is read for another."""
    varying = timed(loop)
    stepwise = values_on_cycles(loop)
    vertices = _vertices(loop, varying, stepwise)
    matrices = shown(port.name for port in loop.inputs if port.kind == "invariant")
    edges = []
    for node in vertices:
        if node.op == "call_function":
            edges += _edges_into(loop, node, vertices, varying, stepwise, matrices)
    for out, (into, delay) in origins(loop, RESETS).items():
        if out in vertices:  # a state that is only handed on
            edges.append(Edge(vertices[into].key, vertices[out].key, delay=delay))
    outputs = [node for port, node in zip(loop.outputs, held_results(loop), strict=True) if port.kind == "sequence"]
    given = tuple(vertices[node].key for node in outputs if node in vertices)
    return Diagram(tuple(told_apart(vertices.values())), tuple(edges), loop.reverse, _ended(loop, edges), given)


def _ended(loop: Loop, edges: list[Edge]) -> frozenset[str]:
    """What only the last step needs: outputs asked for at the end, and whatever is read for those alone."""
    found = asked_at_the_end(loop, edges)
    sources = {edge.source for edge in edges} - found if found else set()
    while more := {
        source for source in sources if all(edge.target in found for edge in edges if edge.source == source)
    }:
        found |= more
        sources -= more
    return frozenset(found)


def _vertices(loop: Loop, varying: set[fx.Node], stepwise: set[fx.Node]) -> dict[fx.Node, Vertex]:
    """By node, in the order of inputs, states, locals, outputs."""
    found: dict[fx.Node, Vertex] = {}
    names = shown([port.name for port in loop.inputs if port.kind in ("sequence", "state")])

    def add(node: fx.Node, name: Name, role: VertexRole, key: str, told: str = "") -> None:
        if node not in found:
            found[node] = Vertex(key, name, role, stepwise=node in stepwise, tooltip=told or _size(node))

    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind == "sequence" and is_target(loop, port):
            add(node, Name("y"), "target", f"input.{port.name}", "the true value")
        elif port.kind == "sequence" and not port.name.startswith("call."):
            add(node, names[port.name], "input", f"input.{port.name}")
    results = list(zip(loop.outputs, held_results(loop, RESETS), strict=True))
    rest = origins(loop, RESETS)
    for port, node in results:
        if port.kind == "state" and (
            node.op != "placeholder" or rest.get(loop.delays[port.name][1], (node,))[0] in rest
        ):
            at_rest = node.op == "placeholder"
            add(loop.delays[port.name][1] if at_rest else node, names[port.name], "state", f"state.{port.name}")
    outputs = [(port, node) for port, node in results if port.kind == "sequence"]
    several = shown(port.name for port, _ in outputs)
    ends = {node: Vertex(f"output.{port.name}", several[port.name]) for port, node in outputs if node not in found}
    for node, vertex in _locals(loop, {*found, *ends}, varying).items():
        add(node, vertex.name, "value", vertex.key)
    for node, vertex in ends.items():
        if node in varying:
            add(node, vertex.name, "value", vertex.key)
    return found


def _locals(loop: Loop, vertices: set[fx.Node], varying: set[fx.Node]) -> dict[fx.Node, Vertex]:
    """Named values that a parameter's product reads, or that feed several vertices; found from the end backwards."""
    feeds: dict[fx.Node, set[fx.Node]] = {}
    chosen: dict[fx.Node, Vertex] = {}
    for node in reversed(loop.nodes):
        reached: set[fx.Node] = set()
        for user in node.users:
            reached |= {user} if user in vertices or user in chosen else feeds.get(user, set())
        feeds[node] = reached
        label = node.meta.get("label")
        if label and node in varying and node not in vertices and (len(reached) > 1 or _is_multiplied(node, varying)):
            chosen[node] = Vertex(f"local.{node.name}", shown([str(label)])[str(label)])
    return dict(reversed(chosen.items()))


def _is_multiplied(node: fx.Node, varying: set[fx.Node]) -> bool:
    """Whether a product with a matrix reads it, perhaps seen another way."""
    return any(
        _is_multiplied(user, varying) if is_view(user) else bool(_matrices(user, node, varying)) for user in node.users
    )


def _matrices(node: fx.Node, source: fx.Node, varying: set[fx.Node]) -> list[str]:
    """The parameters with which an operator multiplies one of its arguments, by name."""
    places = FACTORS.get(spelling(node))
    if places is None or source not in varying:
        return []
    factors = [_flat(node.args[place]) for place in places]
    if not any(source in group for group in factors):
        return []
    fixed = [value for group in factors for value in group if value not in varying]
    return [name for value in fixed for name in _parameters(value)]


def _flat(value: object) -> list[fx.Node]:
    if isinstance(value, (list, tuple)):
        return [node for item in value for node in _flat(item)]
    return [value] if isinstance(value, fx.Node) else []


def _parameters(value: fx.Node) -> list[str]:
    """The matrices that a factor is made of; biases and gains are none."""
    found, waiting, seen = [], [value], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        label = str(node.meta.get("label") or "")
        if node.op == "placeholder" and label and node.meta["val"].dim() > 1 and not label.startswith("call."):
            found.append(label)
        waiting += node.all_input_nodes
    return found[::-1]


def _edges_into(
    loop: Loop,
    node: fx.Node,
    vertices: dict[fx.Node, Vertex],
    varying: set[fx.Node],
    stepwise: set[fx.Node],
    matrices: dict[str, Name],
) -> list[Edge]:
    """Walk back from a vertex to those it reads, and gather what is multiplied on the way."""
    back = origins(loop, RESETS)
    along: dict[fx.Node, dict[str, bool]] = {node: {}}  # parameters between here and the vertex: run step by step?
    found: dict[tuple[fx.Node, int], dict[str, bool]] = {}
    rank = {other: index for index, other in enumerate(loop.graph.nodes)}
    waiting = {node}
    while waiting:
        here = max(waiting, key=rank.__getitem__)
        waiting.remove(here)
        for source in here.all_input_nodes:
            passed = along[here] | dict.fromkeys(_matrices(here, source, varying), here in stepwise)
            if source in vertices and not (source in back and vertices[source].role == "value"):
                found.setdefault((source, 0), {}).update(passed)
            elif source in back:
                found.setdefault(back[source], {}).update(passed)
            elif source in varying and source.op == "call_function":
                along.setdefault(source, {}).update(passed)
                waiting.add(source)
    edges = []
    for (source, delay), passed in found.items():
        if source in vertices:
            named = [name for name in matrices if name in passed]
            told = ", ".join(named)
            written = (
                tuple(map(matrices.__getitem__, named)) if len(named) <= MOST else (Name(f"{len(named)} matrices"),)
            )
            inside = any(passed.values()) if passed else vertices[source].stepwise and vertices[node].stepwise
            edges.append(Edge(vertices[source].key, vertices[node].key, written, delay, stepwise=inside, tooltip=told))
    return edges


def _size(node: fx.Node) -> str:
    shape = list(node.meta["val"].shape[1:])
    return f"{' x '.join(map(str, shape)) or 'one'} {'values' if shape else 'value'} per row"
