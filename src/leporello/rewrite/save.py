"""The rewrite `save`: which forward values are saved for the backward sweep, and which it recomputes.

It works on the pair of a Loop and its gradient: what is saved becomes an extra output of the one and an input of the
other. The choice is made by cost: values that are in memory anyway (inputs, outputs, states) are read from there; cheap
pointwise functions of available values are recomputed; the rest is saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import clean_row_axis, size_of
from leporello.loop.graph import arguments, key_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.value_classes import ValueClass, classes, is_getitem, is_matrix_product, is_view
from leporello.rewrite.mask import held_states
from leporello.rewrite.prune import prune

aten = torch.ops.aten
MATRIX_PRODUCTS = (aten.mm.default, aten.bmm.default)


@dataclass(frozen=True, eq=False)
class Saved:
    """A Loop and its gradient, with what passes between them.

    forward    with the outputs `call.saved.0` … behind the Loop's own
    backward   reads `call.saved.0` …, `output.o` for an output o that it reads, and the inputs it recomputes from
    befores    states whose sequence before each step is read -> the forward output that is their sequence after it
    """

    forward: Loop
    backward: Loop
    befores: dict[str, str]


def save(
    forward: Loop,
    backward: Loop,
    keep: tuple[str, ...] = (),
    expensive: frozenset[Any] | None = None,
    operands: bool = False,
) -> Saved:
    """Decide what is saved between the sweeps, and change both Loops accordingly.

    keep        states whose gradient before the first step is wanted
    expensive   operators that cost more than a pass over memory; by default the pointwise ones of torch that do
    operands    whether everything that gradients of matrices and norms read at once is saved
    """
    backward = prune(backward, keep)  # gradients that are not wanted must not cause anything to be saved
    expensive = EXPENSIVE if expensive is None else expensive
    forward = _with_parts(forward, backward, expensive)
    counterparts = _counterparts(forward, backward)
    decision = _Decision(forward, backward, counterparts, expensive, operands)
    return _apply(forward, backward, counterparts, decision.saved, keep)


def _counterparts(forward: Loop, backward: Loop) -> dict[fx.Node, fx.Node]:
    """For each value of the backward graph that the forward graph computes too, the forward value.

    Of a masked Loop the held state instead of the computed one, where that will do (see `held_states`).
    """
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
    backward_numbers = _numbered(backward, symbols, numbers)
    held = held_states(forward)
    return {
        node: held.get(first[number], first[number]) for node, number in backward_numbers.items() if number in first
    }


def _with_parts(forward: Loop, backward: Loop, expensive: frozenset[Any]) -> Loop:
    """The forward Loop with all results of its expensive operators that the backward Loop reads, as the mean of a layer
    norm: what nothing reads is no value of a Loop, and could not be saved."""
    counterparts = _counterparts(forward, backward)
    missing = [node for node in backward.nodes if is_getitem(node) and node not in counterparts]
    draft = Draft(forward)
    for node in missing:
        operator, index = arguments(node)
        if operator in counterparts and operator.target in expensive:
            with draft.graph.inserting_after(draft.copies[counterparts[operator]]):
                draft.call(getitem, draft.copies[counterparts[operator]], index)
    draft.graph.output(tuple(node for _, node in draft.outputs))
    return replace(forward, graph=draft.graph)


def _forward_key(port: Port) -> tuple[str, str] | None:
    """Kind and name of the forward input that an input of the backward Loop repeats; None for other inputs."""
    if port.kind == "invariant":
        return port.key
    forward = (Role.FORWARD_INPUT, Role.FORWARD_DRAW, Role.STATE_BEFORE)
    return port.of.key if port.of is not None and port.role in forward else None


def _numbered(loop: Loop, symbols: dict[fx.Node, Any], numbers: dict[Any, int]) -> dict[fx.Node, int]:
    """Value numbers: equal for the same operator on values of equal numbers.

    symbols   what identifies each input
    numbers   of all expressions seen so far, in both Loops; those of this Loop are added
    """
    number_of = {node: numbers.setdefault(symbol, len(numbers)) for node, symbol in symbols.items()}
    for node in loop.nodes:
        number_of[node] = numbers.setdefault(key_of(node, number_of), len(numbers))
    return number_of


class _Decision:
    """Decides value by value, in the order of the backward graph, what is saved and what is recomputed.

    counterparts   values of the backward graph that the forward graph computes too -> the forward value
    needed         those of them that the rest of the backward graph reads
    available      what the backward sweep can read: inputs, which are in memory anyway, and what was decided before
    in_memory      forward values that are materialised anyway: outputs, and states that are read
    saved          the values of the backward graph that it reads instead of computing them
    """

    def __init__(
        self,
        forward: Loop,
        backward: Loop,
        counterparts: dict[fx.Node, fx.Node],
        expensive: frozenset[Any],
        operands: bool,
    ) -> None:
        self.counterparts, self.kinds, self.expensive = counterparts, classes(backward), expensive
        self.operands = operands
        varying = [node for node in counterparts if self.kinds[node] is ValueClass.VARYING]
        results = set(backward.results)
        self.needed = {
            node for node in varying if node in results or any(user not in counterparts for user in node.users)
        }
        inputs = {
            node: _forward_key(port)
            for port, node in zip(backward.inputs, backward.placeholders, strict=True)
            if port.kind == "sequence"
        }
        self.available = {node for node, key in inputs.items() if node in self.needed or (key and key[0] == "sequence")}
        states = {key[1] for node, key in inputs.items() if node in self.needed and key and key[0] == "state"}
        ports = zip(forward.outputs, forward.results, strict=True)
        self.in_memory = {node for port, node in ports if port.kind == "sequence"}
        self.in_memory |= {into for name, (into, _) in forward.delays.items() if name in states}
        self.compared = compared_with_maximum(backward.graph, counterparts)
        self.saved: set[fx.Node] = set()
        for node in backward.nodes:
            if node in self.needed:
                self._make_available(node)

    def _make_available(self, node: fx.Node) -> None:
        """Save a value, or make the values available from which it is recomputed."""
        if node in self.available or node.op == "placeholder" or self.kinds[node] is not ValueClass.VARYING:
            self.available.add(node)
            return
        axis = clean_row_axis(node.meta["val"])
        in_memory = self.counterparts[node] in self.in_memory
        worth_it = in_memory or node in self.compared or self._is_operand(node) or self._hides_expensive(node)
        worth_it = worth_it and axis == 0
        if worth_it or not (is_view(node) or axis is None or self._is_cheap(node)):
            self.saved.add(node)
        else:
            for source in node.all_input_nodes:
                self._make_available(source)
        self.available.add(node)

    def _is_operand(self, node: fx.Node) -> bool:
        """Whether a value is expensive for torch, or operands are saved anyway, and a weight's gradient reads it.

        Such gradients are computed at once, where torch's operators would recompute the value, whatever a kernel would
        cost.
        """
        parts = is_view(node) or is_getitem(node) or node.target is aten.slice.Tensor  # read where the whole is
        if node.target not in EXPENSIVE and (parts or not self.operands):
            return False
        readers = (*MATRIX_PRODUCTS, aten.native_layer_norm_backward.default) if self.operands else MATRIX_PRODUCTS
        pending = list(node.users)
        while pending:
            user = pending.pop()
            if user.target in readers and user not in self.counterparts:
                return True
            if is_view(user):
                pending += user.users
        return False

    def _hides_expensive(self, node: fx.Node) -> bool:
        """Whether a value is a view of an expensive one that has no axis of rows, and so cannot be saved itself.

        Such is a product of [rows, n, features] with a matrix, which torch computes with rows and n in one axis.
        """
        source = node
        while is_view(source) and source.target is not aten.expand.default:
            source = source.all_input_nodes[0]
        if source is node or self.kinds[source] is not ValueClass.VARYING:
            return False
        return clean_row_axis(source.meta["val"]) is None and not self._is_cheap(source)

    def _is_cheap(self, node: fx.Node) -> bool:
        """Whether a value is available, or can be recomputed from available values by cheap operators."""
        if node in self.available or self.kinds[node] is not ValueClass.VARYING:
            return True
        if node.op == "placeholder":
            return False
        if self.counterparts[node] in self.in_memory:
            return True
        return (is_view(node) or _is_cheap_operator(node, self.expensive)) and all(
            self._is_cheap(source) for source in node.all_input_nodes
        )


# Pointwise operators of torch that take several nanoseconds a value: more than a pass over memory. A target may have
# another list.
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


def _is_cheap_operator(node: fx.Node, expensive: frozenset[Any]) -> bool:
    """Whether an operator costs less than a pass over memory: most pointwise ones, and layer norm with its parts."""
    if node.target in expensive:
        return False
    if is_getitem(node):
        return _is_cheap_operator(arguments(node)[0], expensive)
    if node.target in (aten.native_layer_norm.default, aten.split.Tensor, aten.slice.Tensor):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _apply(
    forward: Loop, backward: Loop, counterparts: dict[fx.Node, fx.Node], saved: set[fx.Node], keep: tuple[str, ...]
) -> Saved:
    """Both Loops, with the saved values as outputs of the one and inputs of the other."""
    first, second = Draft(forward), Draft(backward)
    outputs = {node: port for port, node in first.outputs if port.kind == "sequence"}
    extra: dict[fx.Node, Port] = {}

    def output_of(node: fx.Node) -> Port:
        """The forward output that is this value, a new one if there is none yet."""
        if node not in outputs and node not in extra:
            extra[node] = _sequence_port(f"call.saved.{len(extra)}", node, Role.SAVED)
            first.outputs.append((extra[node], node))
        return outputs[node] if node in outputs else extra[node]

    inputs: dict[str, fx.Node] = {}
    for node in [node for node in backward.nodes if node in saved]:
        source = first.copies[counterparts[node]]
        port = output_of(source)
        if source in outputs:
            port = replace(_sequence_port(f"output.{port.name}", source, Role.FORWARD_OUTPUT), of=port)
        if port.name not in inputs:
            inputs[port.name] = second.add_input(port)
            inputs[port.name].meta["val"] = node.meta["val"]
        second.replace(second.copies[node], inputs[port.name])
    pruned = prune(second.close(), keep)
    states = [port.of.name for port in pruned.inputs if port.role is Role.STATE_BEFORE and port.of is not None]
    befores = {state: output_of(first.copies[forward.delays[state][0]]).name for state in states}
    return Saved(first.close(), pruned, befores)


def _sequence_port(name: str, node: fx.Node, role: Role) -> Port:
    """The port of a sequence that holds a value of each step."""
    value = node.meta["val"]
    axis = clean_row_axis(value)
    shape = tuple(size_of(size) for index, size in enumerate(value.shape) if index != axis)
    return Port("sequence", name, shape, value.dtype, value.device, role=role)


# ---- values that are compared with a maximum of themselves
#
# The gradient of amax goes to the values that equal the maximum, divided by their number. A recomputed value may differ
# in its last bit, for instance where a multiply-add is rounded once instead of twice; then none equals the maximum, and
# the gradient is NaN. So these values are saved, and the backward sweep reads the bits of the forward sweep.

COMPARISONS = frozenset(getattr(aten, name).Tensor for name in ("eq", "ne", "ge", "le", "gt", "lt"))
# These operators do not round: equal inputs give equal bits.
EXACT_OPERATORS = frozenset(
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


def compared_with_maximum(backward: fx.Graph, forward: Collection[fx.Node]) -> frozenset[fx.Node]:
    """Values that must be saved because the backward graph compares them with a maximum, or with another reduction.

    Where a value is computed without rounding from others, those others are returned instead.

    forward   the values of the backward graph that the forward graph computes too
    """
    compared = set[fx.Node]()
    for node in backward.nodes:
        if node.target in COMPARISONS:
            sources = _exact_sources(node.all_input_nodes)
            if any(map(_may_reduce, sources)) and all(source in forward for source in sources):
                compared |= sources
    return frozenset(compared)


def _exact_sources(values: Iterable[fx.Node]) -> set[fx.Node]:
    """The values from which these are computed without rounding, as far back as possible; inputs are left out."""
    pending = list(values)
    seen, sources = set[fx.Node](), set[fx.Node]()
    while pending:
        node = pending.pop()
        if node in seen or node.op == "placeholder":
            continue
        seen.add(node)
        if is_view(node) or is_getitem(node) or node.target in EXACT_OPERATORS:
            pending += node.all_input_nodes
        else:
            sources.add(node)
    return sources


def _may_reduce(node: fx.Node) -> bool:
    """Whether an operator may select one of many values: anything but pointwise functions and matrix products."""
    return torch.Tag.pointwise not in getattr(node.target, "tags", ()) and not is_matrix_product(node)
