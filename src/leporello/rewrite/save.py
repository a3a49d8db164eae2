"""The rewrite `save`: which forward values the backward sweep is handed, and which it recomputes.

Works on the pair of a Loop and its gradient: what is kept becomes an extra output of the one and an input of the other.
Decided by cost: values that are in memory anyway (inputs, outputs, states) are handed over; cheap pointwise functions
of handed-over values are recomputed; the rest is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import arguments, key_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.value_classes import ValueClass, classes, is_getitem, is_matrix_product, is_view
from leporello.rewrite.mask import held_states
from leporello.rewrite.prune import prune

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default)


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


def save(forward: Loop, backward: Loop, keep: tuple[str, ...] = (), expensive: frozenset[Any] | None = None) -> Saved:
    """Plan what is kept between the sweeps.

    keep        states whose gradient before the first step is wanted
    expensive   pointwise operators that cost more than memory; by default those that are with torch's own operators
    """
    backward = prune(backward, keep)  # what nobody asks for keeps nothing
    twins = _twins(forward, backward)
    choice = _choice(forward, backward, twins, EXPENSIVE if expensive is None else expensive)
    return _applied(forward, backward, twins, choice, keep)


def _twins(forward: Loop, backward: Loop) -> dict[fx.Node, fx.Node]:
    """For each value of the backward graph that the forward graph has too, the forward one (or what stands for it)."""
    numbers: dict[Any, int] = {}
    symbols: dict[fx.Node, Any] = {next(iter(forward.graph.nodes)): "rows"}
    for port, node in zip(forward.inputs, forward.placeholders, strict=True):
        symbols[node] = port.key
    first: dict[int, fx.Node] = {}
    for node, number in _numbered(forward, symbols, numbers).items():
        first.setdefault(number, node)
    symbols = {next(iter(backward.graph.nodes)): "rows"}
    for port, node in zip(backward.inputs, backward.placeholders, strict=True):
        symbols[node] = _forward_key(port) or ("backward", *port.key)
    found = _numbered(backward, symbols, numbers)
    held = held_states(forward)
    return {node: held.get(first[number], first[number]) for node, number in found.items() if number in first}


def _forward_key(port: Port) -> tuple[str, str] | None:
    """Kind and name of the forward input that an input of the backward Loop is; None for other inputs."""
    if port.kind == "invariant":
        return port.key
    forward = (Role.FORWARD_INPUT, Role.FORWARD_DRAW, Role.STATE_BEFORE)
    return port.of.key if port.of is not None and port.role in forward else None


def _numbered(loop: Loop, symbols: dict[fx.Node, Any], numbers: dict[Any, int]) -> dict[fx.Node, int]:
    """A number per value: the same for the same operator on the same values."""
    found = {node: numbers.setdefault(symbol, len(numbers)) for node, symbol in symbols.items()}
    for node in loop.nodes:
        found[node] = numbers.setdefault(key_of(node, found), len(numbers))
    return found


def _choice(forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], expensive: frozenset[Any]) -> set[fx.Node]:
    """The values of the backward graph that are handed over instead of computed."""
    chooser = _Chooser(forward, backward, twins, expensive)
    for node in backward.nodes:
        if node in chooser.needed:
            chooser.obtain(node)
    return chooser.handed


class _Chooser:
    """Decides value by value, in the order of the backward graph.

    needed      values of the forward sweep that the backward sweep reads
    there       what it has: inputs, which are in memory anyway, and what was decided before
    in_memory   forward values that are materialised anyway: outputs, and states that are read
    handed      what it is handed
    """

    def __init__(self, forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], expensive: frozenset[Any]) -> None:
        self.twins, self.kinds, self.expensive = twins, classes(backward), expensive
        varying = [node for node in twins if self.kinds[node] is ValueClass.VARYING]
        results = set(backward.results)
        self.needed = {node for node in varying if node in results or any(user not in twins for user in node.users)}
        inputs = {
            node: _forward_key(port)
            for port, node in zip(backward.inputs, backward.placeholders, strict=True)
            if port.kind == "sequence"
        }
        self.there = {node for node, name in inputs.items() if node in self.needed or (name and name[0] == "sequence")}
        states = {name[1] for node, name in inputs.items() if node in self.needed and name and name[0] == "state"}
        ports = zip(forward.outputs, forward.results, strict=True)
        self.in_memory = {node for port, node in ports if port.kind == "sequence"}
        self.in_memory |= {into for name, (into, _) in forward.delays.items() if name in states}
        self.compared = compared(backward.graph, twins)
        self.handed: set[fx.Node] = set()

    def obtain(self, node: fx.Node) -> None:
        """Hand a value over, or see to what it is computed from."""
        if node in self.there or node.op == "placeholder" or self.kinds[node] is not ValueClass.VARYING:
            self.there.add(node)
            return
        axis = clean_row_axis(node.meta["val"])
        free = (self.twins[node] in self.in_memory or node in self.compared or self._is_multiplied(node)) and axis == 0
        if free or not (is_view(node) or axis is None or self._cheap(node)):
            self.handed.add(node)
        else:
            for source in node.all_input_nodes:
                self.obtain(source)
        self.there.add(node)

    def _is_multiplied(self, node: fx.Node) -> bool:
        """Whether a weight's gradient reads what torch's own operators would have to recompute at some cost."""
        if node.target not in EXPENSIVE:
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
        """Whether it is there, or can be recomputed from what is there by operators that cost little."""
        if node in self.there or self.kinds[node] is not ValueClass.VARYING:
            return True
        if node.op == "placeholder":
            return False
        if self.twins[node] in self.in_memory:
            return True
        return (is_view(node) or _pointwise(node, self.expensive)) and all(
            self._cheap(source) for source in node.all_input_nodes
        )


# Pointwise operators of torch that take several nanoseconds a value: more than a pass over memory. A target may say
# otherwise of its own.
EXPENSIVE: frozenset[Any] = frozenset(
    {
        aten.sin.default,
        aten.cos.default,
        aten.erf.default,
        aten.pow.Tensor_Tensor,
        aten.tanh.default,
        aten.exp.default,
        aten.log.default,
        aten.log1p.default,
        aten.gelu.default,
        aten.softplus.default,
    }
)


def _pointwise(node: fx.Node, expensive: frozenset[Any]) -> bool:
    """Cheap beside memory: most pointwise operators, and layer norm with its parts."""
    if node.target in expensive:
        return False
    if is_getitem(node):
        return _pointwise(arguments(node)[0], expensive)
    if node.target in (aten.native_layer_norm.default, aten.split.Tensor, aten.slice.Tensor):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _applied(
    forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], choice: set[fx.Node], keep: tuple[str, ...]
) -> Saved:
    """Both Loops with the chosen values as outputs of the one and inputs of the other."""
    first, second = Draft(forward), Draft(backward)
    own = {node: port for port, node in first.outputs if port.kind == "sequence"}
    extra: dict[fx.Node, Port] = {}

    def output_of(node: fx.Node) -> Port:
        """The forward output that is this value, a new one if need be."""
        if node not in own and node not in extra:
            extra[node] = _port(f"call.saved.{len(extra)}", node, Role.SAVED)
            first.outputs.append((extra[node], node))
        return own[node] if node in own else extra[node]

    handed: dict[str, fx.Node] = {}
    for node in [node for node in backward.nodes if node in choice]:
        source = first.copies[twins[node]]
        port = output_of(source)
        if source in own:
            port = replace(_port(f"output.{port.name}", source, Role.FORWARD_OUTPUT), of=port)
        if port.name not in handed:
            handed[port.name] = second.add_input(port)
            handed[port.name].meta["val"] = node.meta["val"]
        second.replace(second.copies[node], handed[port.name])
    planned = prune(second.close(), keep)
    states = [port.of.name for port in planned.inputs if port.role is Role.STATE_BEFORE and port.of is not None]
    befores = {state: output_of(first.copies[forward.delays[state][0]]).name for state in states}
    return Saved(first.close(), planned, befores)


def _port(name: str, node: fx.Node, role: Role) -> Port:
    value = node.meta["val"]
    axis = clean_row_axis(value)
    shape = tuple(size for index, size in enumerate(value.shape) if index != axis)
    return Port("sequence", name, shape, value.dtype, value.device, role=role)


# ---- values that are compared with a maximum of themselves
#
# The gradient of amax goes where a value equals the maximum, divided by how many do. A recomputed value differs in its
# last bit as soon as a product and a sum are rounded once instead of twice; then none equals, and the gradient is NaN.
# So the backward sweep is handed the very bits that the forward sweep had.

COMPARISONS = frozenset(getattr(aten, name).Tensor for name in ("eq", "ne", "ge", "le", "gt", "lt"))
# They round nothing: from the same bits come the same bits.
EXACT = frozenset(
    {
        aten.abs.default,
        aten.neg.default,
        aten.cat.default,
        aten.split.Tensor,
        aten.where.self,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.relu.default,
        aten.clamp.default,
        aten.maximum.default,
        aten.minimum.default,
    }
)


def compared(backward: fx.Graph, forward: Collection[fx.Node]) -> frozenset[fx.Node]:
    """What must be handed over: values that the backward graph compares with a maximum, or with what else is gathered
    from many values; of those that come exactly from others, the others.

    forward   the values of the backward graph that the forward graph has too
    """
    found = set[fx.Node]()
    for node in backward.nodes:
        if node.target in COMPARISONS:
            ends = _made_of(node.all_input_nodes)
            if any(map(_gathers, ends)) and all(end in forward for end in ends):
                found |= ends
    return frozenset(found)


def _made_of(values: Iterable[fx.Node]) -> set[fx.Node]:
    """What the values come from exactly, from as far back as can be."""
    waiting = list(values)
    seen, ends = set[fx.Node](), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen or node.op == "placeholder":
            continue
        seen.add(node)
        if is_view(node) or is_getitem(node) or node.target in EXACT:
            waiting += node.all_input_nodes
        else:
            ends.add(node)
    return ends


def _gathers(node: fx.Node) -> bool:
    """Whether it may be one of many values: anything but pointwise functions and products."""
    return torch.Tag.pointwise not in getattr(node.target, "tags", ()) and not is_matrix_product(node)
