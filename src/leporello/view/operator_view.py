"""The operator view of a step: variables and parameters as boxes, operators as circles between them.

Views, casts and copies are left out. What leaves a delay is a point, from which its readers branch off.
"""

from __future__ import annotations

from torch import Tensor, fx

from leporello.draw.picture import Name
from leporello.loop.graph import operator_name
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.value_classes import is_getitem, is_view, values_on_cycles
from leporello.view.diagram import (
    Diagram,
    Edge,
    Vertex,
    delayed_sources,
    is_target,
    last_step_vertices,
    unmasked_results,
)
from leporello.view.display_names import display_names, labels

# How an operator is labelled; others by their own names.
SYMBOLS = {
    "mm": "×",
    "addmm": "×",
    "bmm": "×",
    "baddbmm": "×",
    "mul": "·",
    "add": "+",
    "sub": "−",
    "div": "/",
    "neg": "−",
    "sigmoid": "σ",
    "native_layer_norm": "norm",
    "_softmax": "softmax",
    "_log_softmax": "log softmax",
    "clone": "=",
    "stop": "stop",
}
# Operators that are not drawn: their value counts as that of their argument.
PASS_THROUGH = {"split", "unsafe_split", "split_with_sizes", "chunk", "unbind", "clone", "alias", "detach", "_to_copy"}


def operator_diagram(loop: Loop) -> Diagram:
    """Every operator of a step, with the variables and parameters it reads and the values it makes."""
    builder = _OperatorDiagram(loop)
    for node in loop.nodes:
        builder.add(node)
    for port, node in zip(loop.outputs, unmasked_results(loop), strict=True):
        if port.kind != "state":
            builder.result(node, is_users=not port.is_added)
    return builder.diagram()


class _OperatorDiagram:
    """Builds the diagram, operator by operator.

    boxes       for each value that is a state or an output the kind and port of its box
    keys        for each value the key of the vertex that has it
    requested   keys of results that the user sees, which are drawn although nothing reads them
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.stepwise = values_on_cycles(loop)
        self.vertices: dict[str, Vertex] = {}
        self.edges: dict[tuple[str, str, int], Edge] = {}
        self.sources = delayed_sources(loop)
        self.ports = {node: port for port, node in zip(loop.inputs, loop.placeholders, strict=True)}
        self.labels = labels(loop)
        self.names = display_names(self.labels.values())
        self.fixed = display_names(port.name for port in loop.inputs if port.kind in ("invariant", "draw"))
        self.keys: dict[fx.Node, str] = {}
        self.requested: set[str] = set()
        self.boxes = self._boxes()

    def _boxes(self) -> dict[fx.Node, tuple[str, str]]:
        """Kind and port of the box of each state and output; a value with several names gets its first."""
        boxes: dict[fx.Node, tuple[str, str]] = {}
        results = list(zip(self.loop.outputs, unmasked_results(self.loop), strict=True))
        for kind, word in (("state", "state"), ("sequence", "output")):
            for port, node in results:
                if port.kind == kind and (node.op == "call_function" or (word == "output" and node in self.sources)):
                    boxes.setdefault(node, (word, port.name))
        return boxes

    def add(self, node: fx.Node) -> None:
        """Add an operator, followed by a box where its value is a state or an output."""
        if _passes_through(node):
            if node in self.boxes and not is_getitem(node):
                self._box(node, self.vertex_of(node.args[0]))
            elif node in self.boxes:
                self._box(node, self.vertex_of(node))
            return
        key = self._operator(node)
        if key is None:
            return
        self.keys[node] = key
        if node in self.boxes:
            self._box(node, key)

    def _operator(self, node: fx.Node) -> str | None:
        """Add the vertex of an operator and the edges into it; return its key."""
        reads = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), (Tensor, tuple, list))]
        key, tooltip = f"operator.{node.name}", str(node.meta.get("label") or "")
        inside = node in self.stepwise
        if operator_name(node) in ("addmm", "baddbmm"):  # b + x W: a product, then a sum
            added, *factors = node.args[:3]
            self.vertices[key + ".product"] = Vertex(key + ".product", Name("×"), shape="operator", stepwise=inside)
            for source in factors:
                self._edge(self.vertex_of(source), key + ".product", inside)
            self.vertices[key] = Vertex(key, Name("+"), shape="operator", stepwise=inside, tooltip=tooltip)
            self._edge(key + ".product", key, inside)
            self._edge(self.vertex_of(added), key, inside)
            return key
        self.vertices[key] = Vertex(key, Name(_symbol(node)), shape="operator", stepwise=inside, tooltip=tooltip)
        for source in reads:
            self._edge(self.vertex_of(source), key, inside)
        return key

    def _box(self, node: fx.Node, source: str) -> None:
        """Add the box of a state or an output behind the vertex that computes it."""
        kind, port = self.boxes[node]
        key, name = f"{kind}.{port}", self.names[self.labels[kind, port]]
        before = self.loop.delays[port][1].name if kind == "state" else ""
        self.vertices[key] = Vertex(
            key, name, "state", "box", node in self.stepwise, _unless_shown(port, name), node.name, before
        )
        self._edge(source, key, node in self.stepwise)
        self.keys[node] = key

    def _edge(self, source: str, target: str, inside: bool, delay: int = 0) -> None:
        both = inside and self.vertices[source].stepwise
        self.edges.setdefault((source, target, delay), Edge(source, target, delay=delay, stepwise=both))

    def result(self, node: fx.Node, *, is_users: bool) -> None:
        """Add a result of the step; a state as it was read gets a box of its own, its readers stay at the point.

        is_users   whether the user sees it; else a rewrite added it
        """
        key = self.vertex_of(node)
        if is_users:
            self.requested.add(key)
        if node.op == "placeholder" and node in self.boxes:
            self._box(node, key)
            self.keys[node] = key

    def vertex_of(self, node: object) -> str:
        """The key of the vertex that has this value; an input's vertex is added when it is first read."""
        assert isinstance(node, fx.Node)
        while node not in self.keys and node.op == "call_function":
            node = node.args[0]  # what passes through
            assert isinstance(node, fx.Node)
        if node not in self.keys:
            self.keys[node] = self._input(node)
        return self.keys[node]

    def _input(self, node: fx.Node) -> str:
        port = self.ports[node]
        key, name = f"{port.kind}.{port.name}", self._name(port)
        whole = "" if port.is_added else _unless_shown(port.name, name)
        if port.kind == "state":
            key = f"point.{port.name}"
            self.vertices[key] = Vertex(key, name, "state", "point", node in self.stepwise)
        elif port.kind == "invariant":
            self.vertices[key] = Vertex(key, name, "parameter", "parameter", tooltip=whole)
        elif is_target(port):
            self.vertices[key] = Vertex(key, Name("y"), "target", "box", node=node.name)
        else:
            self.vertices[key] = Vertex(key, name, "input", "box", tooltip=whole, node=node.name)
        return key

    def _name(self, port: Port) -> Name:
        """The name of an input as it is shown."""
        if port.is_added:
            return Name(port.name.removeprefix("call."))
        if port.kind in ("invariant", "draw"):
            return self.fixed[port.name]
        return self.names[self.labels["state" if port.kind == "state" else "input", port.name]]

    def diagram(self) -> Diagram:
        """The finished diagram, with the edges of the delays and without what nothing reads."""
        states = [node for node in self.keys if node in self.sources]
        for node in states:
            before, delay = self.sources[node]
            if before in self.sources and before not in self.keys:
                states.append(before)  # read by no operator, only passed on
            self._edge(self.vertex_of(before), self.keys[node], node in self.stepwise, delay)
        self._remove(self._unread())
        order = sorted(self.vertices.values(), key=lambda vertex: vertex.role != "input")
        return Diagram(
            tuple(order), tuple(self.edges.values()), self.loop.reverse, self._last_step_only(), self._outputs()
        )

    def _outputs(self) -> tuple[str, ...]:
        results = zip(self.loop.outputs, unmasked_results(self.loop), strict=True)
        return tuple(self.vertex_of(node) for port, node in results if port.kind == "sequence")

    def _unread(self) -> set[str]:
        """Keys of operators whose values nothing reads, such as the mask that keeps a state past a row's end."""
        unread: set[str] = set()
        while more := {
            key
            for key, vertex in self.vertices.items()
            if key not in unread | self.requested
            and (vertex.shape == "operator" or key.startswith("sequence.call."))
            and all(edge.target in unread for edge in self.edges.values() if edge.source == key)
        }:
            unread |= more
        return unread

    def _remove(self, keys: set[str]) -> None:
        self.vertices = {key: vertex for key, vertex in self.vertices.items() if key not in keys}
        self.edges = {ends: edge for ends, edge in self.edges.items() if not keys & {edge.source, edge.target}}

    def _last_step_only(self) -> frozenset[str]:
        """Keys of what only the last step computes: its outputs, and what is read for those alone."""
        keys = last_step_vertices(self.loop, self.edges.values())
        if not keys:
            return frozenset()
        while True:
            more = {
                vertex.key
                for vertex in self.vertices.values()
                if vertex.key not in keys
                and vertex.role != "state"
                and all(edge.target in keys for edge in self.edges.values() if edge.source == vertex.key)
            }
            if not more:
                return frozenset(keys)
            keys |= more


def _unless_shown(whole: str, name: Name) -> str:
    """The whole name as a tooltip, where another one is shown."""
    return "" if str(name) == whole else whole


def _passes_through(node: fx.Node) -> bool:
    return is_view(node) or is_getitem(node) or operator_name(node) in PASS_THROUGH


def _symbol(node: fx.Node) -> str:
    """The label of an operator; of `1 - z` it is `1−`."""
    if operator_name(node) == "rsub" and isinstance(node.args[1], (int, float)):
        return f"{node.args[1]:g}−"
    return SYMBOLS.get(operator_name(node), operator_name(node).strip("_").replace("_", " "))
