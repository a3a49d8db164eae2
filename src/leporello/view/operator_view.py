"""The operators of a step: variables and parameters as boxes, operators as circles between them.

Operators that only look at a value another way are left out. What leaves a delay is a point, from which its readers
branch off.
"""

from __future__ import annotations

from torch import Tensor, fx

from leporello.draw.picture import Name
from leporello.loop.loop import Loop
from leporello.loop.value_classes import is_part, is_view, values_on_cycles
from leporello.view.diagram import (
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
)

# How an operator is written; others by their own names.
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
PASSED = {"split", "unsafe_split", "split_with_sizes", "chunk", "unbind", "clone", "alias", "detach", "_to_copy"}


def operators(loop: Loop) -> Diagram:
    """Every operator of a step, with the variables and parameters it reads and the values it makes."""
    view = _Operators(loop)
    for node in loop.nodes:
        view.add(node)
    for port, node in zip(loop.outputs, held_results(loop), strict=True):
        if port.kind != "state":
            view.result(node, asked=not port.name.startswith("call."))
    return view.diagram()


class _Operators:
    """A diagram while it is made."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.stepwise = values_on_cycles(loop)
        self.vertices: dict[str, Vertex] = {}
        self.edges: dict[tuple[str, str, int], Edge] = {}
        self.origins = origins(loop)
        self.ports = {node: port for port, node in zip(loop.inputs, loop.placeholders, strict=True)}
        kinds = {port.kind for port in loop.inputs}
        self.names = {kind: shown(port.name for port in loop.inputs if port.kind == kind) for kind in kinds}
        self.made: dict[fx.Node, str] = {}
        self.asked: set[str] = set()
        self.boxes = self._boxes()

    def _boxes(self) -> dict[fx.Node, tuple[str, Name]]:
        """Values that are variables: states and outputs; the first name of each."""
        found: dict[fx.Node, tuple[str, Name]] = {}
        results = list(zip(self.loop.outputs, held_results(self.loop), strict=True))
        for kind, word in (("state", "state"), ("sequence", "output")):
            names = shown(port.name for port, _ in results if port.kind == kind)
            for port, node in results:
                if port.kind == kind and (node.op == "call_function" or (word == "output" and node in self.origins)):
                    found.setdefault(node, (f"{word}.{port.name}", names[port.name]))
        return found

    def add(self, node: fx.Node) -> None:
        """An operator, with its box behind it where its value is a variable."""
        if self._is_passed(node):
            if node in self.boxes and not is_part(node):
                self._box(node, self.seen(node.args[0]))
            elif node in self.boxes:
                self._box(node, self.seen(node))
            return
        key = self._operator(node)
        if key is None:
            return
        self.made[node] = key
        if node in self.boxes:
            self._box(node, key)

    def _operator(self, node: fx.Node) -> str | None:
        reads = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), (Tensor, tuple, list))]
        key, told = f"operator.{node.name}", str(node.meta.get("label") or "")
        inside = node in self.stepwise
        if spelling(node) in ("addmm", "baddbmm"):  # b + x W: a product, then a sum
            added, *factors = node.args[:3]
            self.vertices[key + ".product"] = Vertex(key + ".product", Name("×"), shape="operator", stepwise=inside)
            for source in factors:
                self._edge(self.seen(source), key + ".product", inside)
            self.vertices[key] = Vertex(key, Name("+"), shape="operator", stepwise=inside, tooltip=told)
            self._edge(key + ".product", key, inside)
            self._edge(self.seen(added), key, inside)
            return key
        self.vertices[key] = Vertex(key, Name(_symbol(node)), shape="operator", stepwise=inside, tooltip=told)
        for source in reads:
            self._edge(self.seen(source), key, inside)
        return key

    def _box(self, node: fx.Node, key: str) -> None:
        own, name = self.boxes[node]
        self.vertices[own] = Vertex(own, name, "state", "box", node in self.stepwise)
        self._edge(key, own, node in self.stepwise)
        self.made[node] = own

    def _edge(self, source: str, target: str, inside: bool, delay: int = 0) -> None:
        both = inside and self.vertices[source].stepwise
        self.edges.setdefault((source, target, delay), Edge(source, target, delay=delay, stepwise=both))

    def result(self, node: fx.Node, *, asked: bool) -> None:
        """What a step gives out; a state as it was read gets a box of its own, its readers stay at the point."""
        key = self.seen(node)
        if asked:
            self.asked.add(key)
        if node.op == "placeholder" and node in self.boxes:
            self._box(node, key)
            self.made[node] = key

    def _is_passed(self, node: fx.Node) -> bool:
        return is_view(node) or is_part(node) or spelling(node) in PASSED

    def seen(self, node: object) -> str:
        """The vertex whose value this is, made when it is first read."""
        assert isinstance(node, fx.Node)
        while node not in self.made and node.op == "call_function":
            node = node.args[0]  # looked at another way
            assert isinstance(node, fx.Node)
        if node not in self.made:
            self.made[node] = self._input(node)
        return self.made[node]

    def _input(self, node: fx.Node) -> str:
        port = self.ports[node]
        key = f"{port.kind}.{port.name}"
        own = port.name.removeprefix("call.")
        name = self.names[port.kind][port.name] if own == port.name else Name(own)
        if port.kind == "state":
            key = f"point.{port.name}"
            self.vertices[key] = Vertex(key, name, "state", "point", node in self.stepwise)
        elif port.kind == "invariant":
            self.vertices[key] = Vertex(key, name, "parameter", "parameter")
        else:
            role: VertexRole = "target" if is_target(self.loop, port) else "input"
            self.vertices[key] = Vertex(key, Name("y") if role == "target" else name, role, "box")
        return key

    def diagram(self) -> Diagram:
        waiting = [node for node in self.made if node in self.origins]
        for node in waiting:
            before, delay = self.origins[node]
            if before in self.origins and before not in self.made:
                waiting.append(before)  # read by no operator, only handed on
            self._edge(self.seen(before), self.made[node], node in self.stepwise, delay)
        self._leave_out(self._unread())
        order = sorted(self.vertices.values(), key=lambda vertex: vertex.role != "input")
        return Diagram(tuple(order), tuple(self.edges.values()), self.loop.reverse, self._ended(), self._outputs())

    def _outputs(self) -> tuple[str, ...]:
        results = zip(self.loop.outputs, held_results(self.loop), strict=True)
        return tuple(self.seen(node) for port, node in results if port.kind == "sequence")

    def _unread(self) -> set[str]:
        """Operators whose values nothing reads, such as what holds a state past a row's end."""
        found: set[str] = set()
        while more := {
            key
            for key, vertex in self.vertices.items()
            if key not in found | self.asked
            and (vertex.shape == "operator" or key.startswith("sequence.call."))
            and all(edge.target in found for edge in self.edges.values() if edge.source == key)
        }:
            found |= more
        return found

    def _leave_out(self, keys: set[str]) -> None:
        self.vertices = {key: vertex for key, vertex in self.vertices.items() if key not in keys}
        self.edges = {ends: edge for ends, edge in self.edges.items() if not keys & {edge.source, edge.target}}

    def _ended(self) -> frozenset[str]:
        """What only the last step computes."""
        found = asked_at_the_end(self.loop, self.edges.values())
        if not found:
            return frozenset()
        while True:
            more = {
                vertex.key
                for vertex in self.vertices.values()
                if vertex.key not in found
                and vertex.role != "state"
                and all(edge.target in found for edge in self.edges.values() if edge.source == vertex.key)
            }
            if not more:
                return frozenset(found)
            found |= more


def _symbol(node: fx.Node) -> str:
    """How an operator is written: `1 - z` with its number."""
    if spelling(node) == "rsub" and isinstance(node.args[1], (int, float)):
        return f"{node.args[1]:g}−"
    return SYMBOLS.get(spelling(node), spelling(node).strip("_").replace("_", " "))
