"""The rewrite `save`: which forward values the backward sweep is handed, and which it computes again.

Works on the pair of a Loop and its gradient: what is kept becomes an extra output of the one and an input of the other.
Weighed by cost: values that lie in memory anyway (inputs, outputs, states) are handed over; pointwise functions of
handed-over values are computed again; the rest is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import arguments, key_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.value_classes import ValueClass, classes, is_getitem, is_view
from leporello.rewrite.compared import compared
from leporello.rewrite.mask import stand_ins
from leporello.rewrite.prune import prune

aten = torch.ops.aten
SAVED = "call.saved."  # in front of the names of kept values
PRODUCTS = (aten.mm.default, aten.bmm.default)
_PREFIXES = {"input.": "sequence", "draw.": "draw", "before.": "state"}


@dataclass(frozen=True, eq=False)
class Saved:
    """The pair after planning.

    forward    with the outputs `call.saved.0` … behind the loop's own
    backward   reading `call.saved.0` …, `output.o` for outputs it is handed, and what it still computes from
    befores    states whose sequence before each step is read -> the forward output that is their sequence after it
    """

    forward: Loop
    backward: Loop
    befores: dict[str, str]


def save(forward: Loop, backward: Loop, keep: tuple[str, ...] = (), dear: frozenset[Any] | None = None) -> Saved:
    """Plan what is kept between the sweeps.

    keep   states whose gradient before the first step is wanted
    dear   pointwise operators that cost more than memory; those of torch's own operators unless told
    """
    backward = prune(backward, keep)  # what nobody asks for keeps nothing
    twins = _twins(forward, backward)
    choice = _choice(forward, backward, twins, DEAR if dear is None else dear)
    return _applied(forward, backward, twins, choice, keep)


def _twins(forward: Loop, backward: Loop) -> dict[fx.Node, fx.Node]:
    """For each value of the backward graph that the forward graph has too, the forward one (or what stands for it)."""
    numbers: dict[Any, int] = {}
    symbols: dict[fx.Node, Any] = {next(iter(forward.graph.nodes)): "rows"}
    for port, node in zip(forward.inputs, forward.placeholders, strict=True):
        symbols[node] = (port.kind, port.name)
    first: dict[int, fx.Node] = {}
    for node, number in _numbered(forward, symbols, numbers).items():
        first.setdefault(number, node)
    symbols = {next(iter(backward.graph.nodes)): "rows"}
    for port, node in zip(backward.inputs, backward.placeholders, strict=True):
        symbols[node] = _forward_name(port) or ("backward", port.kind, port.name)
    found = _numbered(backward, symbols, numbers)
    held = stand_ins(forward)
    return {node: held.get(first[number], first[number]) for node, number in found.items() if number in first}


def _forward_name(port: Port) -> tuple[str, str] | None:
    if port.kind == "invariant":
        return ("invariant", port.name)
    for prefix, kind in _PREFIXES.items():
        if port.kind == "sequence" and port.name.startswith(prefix):
            return (kind, port.name.removeprefix(prefix))
    return None


def _numbered(loop: Loop, symbols: dict[fx.Node, Any], numbers: dict[Any, int]) -> dict[fx.Node, int]:
    """A number per value: the same for the same operator on the same values."""
    found = {node: numbers.setdefault(symbol, len(numbers)) for node, symbol in symbols.items()}
    for node in loop.nodes:
        found[node] = numbers.setdefault(key_of(node, found), len(numbers))
    return found


def _choice(forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], dear: frozenset[Any]) -> set[fx.Node]:
    """The values of the backward graph that are handed over instead of computed."""
    chooser = _Chooser(forward, backward, twins, dear)
    for node in backward.nodes:
        if node in chooser.needed:
            chooser.obtain(node)
    return chooser.handed


class _Chooser:
    """Decides value by value, in the order of the backward graph.

    needed   values of the forward sweep that the backward sweep reads
    there    what it has: inputs that lie in memory anyway, and what was decided before
    handed   what it is handed
    """

    def __init__(self, forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], dear: frozenset[Any]) -> None:
        self.twins, self.kinds, self.dear = twins, classes(backward), dear
        varying = [node for node in twins if self.kinds[node] is ValueClass.VARYING]
        results = set(backward.results)
        self.needed = {node for node in varying if node in results or any(user not in twins for user in node.users)}
        inputs = {
            node: _forward_name(port)
            for port, node in zip(backward.inputs, backward.placeholders, strict=True)
            if port.kind == "sequence"
        }
        self.there = {node for node, name in inputs.items() if node in self.needed or (name and name[0] == "sequence")}
        states = {name[1] for node, name in inputs.items() if node in self.needed and name and name[0] == "state"}
        ports = zip(forward.outputs, forward.results, strict=True)
        self.lying = {node for port, node in ports if port.kind == "sequence"}
        self.lying |= {into for name, (into, _) in forward.delays.items() if name in states}
        self.compared = compared(backward.graph, twins)
        self.handed: set[fx.Node] = set()

    def obtain(self, node: fx.Node) -> None:
        """Hand a value over, or see to what it is computed from."""
        if node in self.there or node.op == "placeholder" or self.kinds[node] is not ValueClass.VARYING:
            self.there.add(node)
            return
        axis = clean_row_axis(node.meta["val"])
        lies = (self.twins[node] in self.lying or node in self.compared or self._is_multiplied(node)) and axis == 0
        if lies or not (is_view(node) or axis is None or self._cheap(node)):
            self.handed.add(node)
        else:
            for source in node.all_input_nodes:
                self.obtain(source)
        self.there.add(node)

    def _is_multiplied(self, node: fx.Node) -> bool:
        """Whether a weight's gradient reads what torch's own operators would have to compute again, at some cost."""
        if node.target not in DEAR:
            return False
        waiting = list(node.users)
        while waiting:
            user = waiting.pop()
            if user.target in PRODUCTS and user not in self.twins:
                return True
            if is_view(user):
                waiting += user.users
        return False

    def _cheap(self, node: fx.Node) -> bool:
        """Whether it lies there, or is made of what lies there by operators that cost little."""
        if node in self.there or self.kinds[node] is not ValueClass.VARYING:
            return True
        if node.op == "placeholder":
            return False
        if self.twins[node] in self.lying:
            return True
        return (is_view(node) or _pointwise(node, self.dear)) and all(
            self._cheap(source) for source in node.all_input_nodes
        )


# Pointwise, but several nanoseconds a value: dearer than memory. Of kernels' own functions none is.
DEAR_IN_KERNELS = frozenset({aten.sin.default, aten.cos.default, aten.erf.default, aten.pow.Tensor_Tensor})
DEAR = DEAR_IN_KERNELS | {
    aten.tanh.default,
    aten.exp.default,
    aten.log.default,
    aten.log1p.default,
    aten.gelu.default,
    aten.softplus.default,
}


def _pointwise(node: fx.Node, dear: frozenset[Any]) -> bool:
    """Cheap beside memory: most pointwise operators, and layer norm with its parts."""
    if node.target in dear:
        return False
    if is_getitem(node):
        return _pointwise(arguments(node)[0], dear)
    if node.target in (aten.native_layer_norm.default, aten.split.Tensor, aten.slice.Tensor):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _applied(
    forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], choice: set[fx.Node], keep: tuple[str, ...]
) -> Saved:
    """Both loops with the chosen values as outputs of the one and inputs of the other."""
    first, second = Draft(forward), Draft(backward)
    own = {node: port.name for port, node in first.outputs if port.kind == "sequence"}
    extra: dict[fx.Node, str] = {}

    def given(node: fx.Node) -> str:
        """The name of the forward output that is this value, a new one if need be."""
        if node not in own and node not in extra:
            extra[node] = f"{SAVED}{len(extra)}"
            first.outputs.append((_port(extra[node], node), node))
        return own[node] if node in own else extra[node]

    handed: dict[str, fx.Node] = {}
    for node in [node for node in backward.nodes if node in choice]:
        source = first.copies[twins[node]]
        name = f"output.{own[source]}" if source in own else given(source)
        if name not in handed:
            handed[name] = second.add_input(_port(name, source))
            handed[name].meta["val"] = node.meta["val"]
        second.replace(second.copies[node], handed[name])
    planned = prune(second.close(), keep)
    names = [_forward_name(port) for port in planned.inputs if port.kind == "sequence"]
    states = [name[1] for name in names if name and name[0] == "state"]
    befores = {state: given(first.copies[forward.delays[state][0]]) for state in states}
    return Saved(first.close(), planned, befores)


def _port(name: str, node: fx.Node) -> Port:
    value = node.meta["val"]
    axis = clean_row_axis(value)
    shape = tuple(size for index, size in enumerate(value.shape) if index != axis)
    return Port("sequence", name, shape, value.dtype, value.device)
