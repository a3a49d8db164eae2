"""The textbook view of a step: the graph contracted to its named values, with the matrices on the edges between them.

Vertices are inputs, states, outputs, the loss and its target, and those local variables of the cell's own forward that
a product with a parameter reads or that several other vertices read. Everything else is an edge, or not shown.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, fx

from leporello.draw.picture import Name
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import operator_name
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.value_classes import is_view, values_on_cycles
from leporello.view.diagram import (
    Diagram,
    Edge,
    Vertex,
    VertexRole,
    delayed_sources,
    is_target,
    last_step_vertices,
    unmasked_results,
    varying_values,
    with_distinct_names,
)
from leporello.view.display_names import display_names, labels

MAX_MATRICES_ON_EDGE = 3  # more are counted, not named
MAX_LETTERS_ON_EDGE = 24  # names of several matrices that are longer together are counted too

# Operators that multiply a value by a matrix, with the indices of the arguments that are factors.
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


def textbook_diagram(loop: Loop, inner: bool | Collection[str] = False) -> Diagram:
    """The vertices of a step, and an edge wherever one is read for another.

    inner   whether all named values of the step have vertices, and the probabilities ŷ inside a cross-entropy; or the
            names of those that have
    """
    varying = varying_values(loop)
    stepwise = values_on_cycles(loop)
    vertices = _vertices(loop, varying, stepwise, inner)
    matrices = display_names(port.name for port in loop.inputs if port.kind == "invariant")
    edges = []
    for node in vertices:
        if node.op == "call_function":
            edges += _edges_into(loop, node, vertices, varying, stepwise, matrices)
    for out, (into, delay) in delayed_sources(loop, Role.RESET).items():
        if out in vertices:  # a state that is only passed on
            edges.append(Edge(vertices[into].key, vertices[out].key, delay=delay))
    outputs = [node for port, node in zip(loop.outputs, unmasked_results(loop), strict=True) if port.kind == "sequence"]
    keys = tuple(vertices[node].key for node in outputs if node in vertices)
    distinct = tuple(with_distinct_names(vertices.values()))
    return Diagram(distinct, tuple(edges), loop.reverse, _last_step_only(loop, edges), keys)


def _last_step_only(loop: Loop, edges: list[Edge]) -> frozenset[str]:
    """Keys of what only the last step computes: its outputs, and what is read for those alone."""
    keys = last_step_vertices(loop, edges)
    sources = {edge.source for edge in edges} - keys if keys else set()
    while more := {source for source in sources if all(edge.target in keys for edge in edges if edge.source == source)}:
        keys |= more
        sources -= more
    return frozenset(keys)


def _vertices(
    loop: Loop, varying: set[fx.Node], stepwise: set[fx.Node], wanted: bool | Collection[str]
) -> dict[fx.Node, Vertex]:
    """The vertex of each value that has one, in the order of inputs, states, locals, outputs."""
    vertices: dict[fx.Node, Vertex] = {}
    called = labels(loop)
    inputs = [
        (port, node) for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.kind == "sequence"
    ]
    results = list(zip(loop.outputs, unmasked_results(loop, Role.RESET), strict=True))
    states = _states(loop, [(port, node) for port, node in results if port.kind == "state"])
    outputs = [(port, node) for port, node in results if port.kind == "sequence"]
    ends = {node: port.name for port, node in outputs if node not in states and node in varying}
    known = {*(node for _, node in inputs), *states, *(node for _, node in outputs)}
    inner = _locals(loop, known, varying, wanted)
    names = display_names([*called.values(), *inner.values()])

    def add(node: fx.Node, label: str, role: VertexRole, key: str, whole: str) -> None:
        if node not in vertices:
            size = _size(node) if str(names[label]) == whole else f"{whole}: {_size(node)}"
            before = loop.delays[whole][1].name if role == "state" else ""
            vertices[node] = Vertex(
                key, names[label], role, stepwise=node in stepwise, tooltip=size, node=node.name, before=before
            )

    for port, node in inputs:
        if is_target(port):
            key, whole = f"input.{port.name}", "the true value"
            vertices[node] = Vertex(key, Name("y"), "target", tooltip=whole, node=node.name)
        elif not port.is_added:
            add(node, called["input", port.name], "input", f"input.{port.name}", port.name)
    for node, leaf in states.items():
        add(node, called["state", leaf], "state", f"state.{leaf}", leaf)
    for node, label in inner.items():
        add(node, label, "value", f"local.{node.name}", label)
    for node in _probabilities(loop, vertices) if wanted is True or (wanted and "ŷ" in wanted) else ():
        vertices[node] = Vertex("loss.ŷ", Name("ŷ"), tooltip=_size(node), node=node.name, through="exp")
    for port, node in outputs:
        if ends.get(node) == port.name:
            add(node, called["output", port.name], "value", f"output.{port.name}", port.name)
    return vertices


def _states(loop: Loop, results: list[tuple[Port, fx.Node]]) -> dict[fx.Node, str]:
    """The values that are vertices of states, each with its first leaf: as computed, or as read where it is never."""
    sources = delayed_sources(loop, Role.RESET)
    found: dict[fx.Node, str] = {}
    for port, node in results:
        entry = loop.delays[port.name][1]
        if node.op != "placeholder":
            found.setdefault(node, port.name)
        elif sources.get(entry, (node,))[0] in sources:
            found.setdefault(entry, port.name)
    return found


def _probabilities(loop: Loop, vertices: dict[fx.Node, Vertex]) -> list[fx.Node]:
    """The logarithm of softmax inside the loss: what only L reads, and no variable of the step."""
    loss = next((node for port, node in zip(loop.outputs, loop.results, strict=True) if port.name == "L"), None)
    others = [node for port, node in zip(loop.outputs, loop.results, strict=True) if port.name != "L"]
    read = _ancestors(others)
    within = _ancestors([loss] if loss is not None else []) - read - set(vertices)
    return [node for node in loop.nodes if node in within and operator_name(node) == "_log_softmax"][:1]


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are computed from."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _locals(
    loop: Loop, vertices: set[fx.Node], varying: set[fx.Node], wanted: bool | Collection[str]
) -> dict[fx.Node, str]:
    """Named values that are wanted, that a product with a parameter reads, or that several vertices read; each with
    its name."""
    read_by: dict[fx.Node, set[fx.Node]] = {}  # for each value the vertices that read it, through others without vertex
    chosen: dict[fx.Node, str] = {}
    for node in reversed(loop.nodes):
        readers: set[fx.Node] = set()
        for user in node.users:
            readers |= {user} if user in vertices or user in chosen else read_by.get(user, set())
        read_by[node] = readers
        label = node.meta.get("label")
        if not label or node not in varying or node in vertices:
            continue
        is_wanted = wanted if isinstance(wanted, bool) else str(label) in wanted
        if len(readers) > 1 or (is_wanted and readers) or _is_multiplied(node, varying):
            chosen[node] = str(label)
    return dict(reversed(chosen.items()))


def _is_multiplied(node: fx.Node, varying: set[fx.Node]) -> bool:
    """Whether a product with a matrix reads it, perhaps through views."""
    return any(
        _is_multiplied(user, varying) if is_view(user) else bool(_matrices(user, node, varying)) for user in node.users
    )


def _matrices(node: fx.Node, source: fx.Node, varying: set[fx.Node]) -> list[str]:
    """Names of the parameters with which an operator multiplies its argument `source`; none where it does not."""
    places = FACTORS.get(operator_name(node))
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
    """Names of the matrices that a factor is computed from; biases and gains are no matrices."""
    names, pending, seen = [], [value], set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        label, example = str(node.meta.get("label") or ""), node.meta.get("val")
        is_matrix = isinstance(example, Tensor) and example.dim() > 1 and not has_rows(example)
        if node.op == "placeholder" and label and is_matrix:
            names.append(label)
        pending += node.all_input_nodes
    return names[::-1]


def _edges_into(
    loop: Loop,
    node: fx.Node,
    vertices: dict[fx.Node, Vertex],
    varying: set[fx.Node],
    stepwise: set[fx.Node],
    matrices: dict[str, Name],
) -> list[Edge]:
    """Walk back from a vertex to those it reads, and collect the matrices on the way.

    matrices   for each parameter its name as it is displayed
    """
    sources = delayed_sources(loop, Role.RESET)
    along: dict[fx.Node, dict[str, bool]] = {node: {}}  # matrices between here and the vertex: multiplied step by step?
    paths: dict[tuple[fx.Node, int], dict[str, bool]] = {}  # the same by vertex that is read, and its delay
    rank = {other: index for index, other in enumerate(loop.graph.nodes)}
    pending = {node}
    while pending:
        here = max(pending, key=rank.__getitem__)
        pending.remove(here)
        for source in here.all_input_nodes:
            passed = along[here] | dict.fromkeys(_matrices(here, source, varying), here in stepwise)
            if source in vertices and not (source in sources and vertices[source].role == "value"):
                paths.setdefault((source, 0), {}).update(passed)
            elif source in sources:
                paths.setdefault(sources[source], {}).update(passed)
            elif source in varying and source.op == "call_function":
                along.setdefault(source, {}).update(passed)
                pending.add(source)
    edges = []
    for (source, delay), passed in paths.items():
        if source in vertices:
            names = [name for name in matrices if name in passed]
            shown = tuple(matrices[name] for name in names)
            letters = sum(len(str(name)) for name in shown)
            if len(shown) > MAX_MATRICES_ON_EDGE or (len(shown) > 1 and letters > MAX_LETTERS_ON_EDGE):
                shown = (Name(f"{len(shown)} matrices"),)
            inside = any(passed.values()) if passed else vertices[source].stepwise and vertices[node].stepwise
            ends = vertices[source].key, vertices[node].key
            edges.append(Edge(*ends, shown, delay, stepwise=inside, tooltip=", ".join(names)))
    return edges


def _size(node: fx.Node) -> str:
    shape = list(node.meta["val"].shape[1:])
    return f"{' x '.join(map(str, shape)) or 'one'} {'values' if shape else 'value'} per row"
