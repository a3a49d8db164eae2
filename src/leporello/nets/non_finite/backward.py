"""The backward sweep of a call that failed: which operator's gradient was the first that is not finite.

Blocks of steps are differentiated at once by torch's autograd, as the engine `reference` does. A block with a gradient
that is not finite is differentiated again one step after another, and the first such step operator by operator: on the
Loop's own graph, whose operators are those the user wrote, with names and lines.

Known shortcomings: weights that a gradient method draws are drawn anew; overlapping windows and methods that go forward
in time are searched as exact back-propagation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.state_gradient import ALL, Passing, with_clipped_gradient
from leporello.loop.graph import arguments
from leporello.loop.value_classes import is_getitem
from leporello.nets.non_finite.forward import FailedCall, States, evaluated, states_in
from leporello.nets.non_finite.origin import Origin, kind_of, made_by

Gradients = dict[str, Tensor]  # by name


def backward(failed: FailedCall, starts: Mapping[int, States], arriving: Gradients, passing: Passing) -> Origin | None:
    """Go back from the gradients of the outputs; the origin of the first that is not finite, None if all are.

    starts     the state before each block, by its first step, as the forward sweep found it
    arriving   the gradient of each output sequence, (length, batch, ...)
    passing    what each step passes back to the step before; several groups of losses go back in full
    """
    passing = Passing(limit=passing.limit) if passing.count > 1 else passing
    leaving: Gradients = {}  # of the state after the block
    totals: Gradients = {}
    for first, last in failed.blocks(reverse=True):
        block = _Block(failed.of(first, last, starts[first]), first, _cut(arriving, first, last), failed.values)
        gradients = block.gradients(leaving, _passing_of(passing, first, last))
        if block.wrong(gradients, totals) is not None:
            return _step_by_step(block, leaving, totals, passing)
        totals = block.added(totals, gradients)
        leaving = states_in(gradients)
    return None


def _cut(arriving: Gradients, first: int, last: int) -> Gradients:
    return {name: value[first:last] for name, value in arriving.items()}


def _passing_of(passing: Passing, first: int, last: int) -> Passing:
    weights = None if passing.weights is None else passing.weights[first:last]
    return ALL if weights is None and passing.limit is None else Passing(weights, None, passing.limit)


class _Block:
    """Some steps, with the gradients that arrive at their outputs.

    originals   the values of the whole call, which say whose gradient is wanted; states are differentiated in any case
    """

    def __init__(self, failed: FailedCall, first: int, arriving: Gradients, originals: tuple[Tensor, ...]) -> None:
        self.first, self.arriving, self.originals = first, arriving, originals
        self.wanted = [value.requires_grad for value in originals]
        carried = [
            wanted or (port.kind == "state" and (value.is_floating_point() or value.is_complex()))
            for (port, value), wanted in zip(failed.pairs, self.wanted, strict=True)
        ]
        leaves = [
            value.detach().requires_grad_() if there else value.detach()
            for value, there in zip(failed.values, carried, strict=True)
        ]
        self.failed = replace(failed, values=tuple(leaves))

    def gradients(self, leaving: Gradients, passing: Passing) -> dict[tuple[str, str], Tensor]:
        """The gradient of every input that has one, by kind and name.

        leaving   the gradients of the state after the block
        """
        with torch.enable_grad():
            results = self.failed.run(passing)
        pairs = [(value, self.arriving.get(name)) for (kind, name), value in results.items() if kind == "sequence"]
        pairs += [(value, leaving.get(name)) for name, value in states_in(results).items()]
        pairs = [(value, gradient) for value, gradient in pairs if gradient is not None and value.requires_grad]
        sources = [(port, value) for port, value in self.failed.pairs if value.requires_grad]
        if not pairs or not sources:
            return {}
        outputs, incoming = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(outputs, [value for _, value in sources], incoming, allow_unused=True)
        named = zip(sources, gradients, strict=True)
        return {(port.kind, port.name): value for (port, _), value in named if value is not None}

    def added(self, totals: Gradients, gradients: Mapping[tuple[str, str], Tensor]) -> Gradients:
        """The gradients of invariants, summed over the steps so far."""
        terms = {name: value for (kind, name), value in gradients.items() if kind == "invariant"}
        return totals | {name: totals[name] + value if name in totals else value for name, value in terms.items()}

    def wrong(self, gradients: Mapping[tuple[str, str], Tensor], totals: Gradients) -> tuple[str, str] | None:
        """Kind and name of the first gradient that is not finite and that is used: of states, inputs, then invariants.

        The kind is "total" where only an invariant's sum with `totals`, the gradients of later steps, is not finite.
        """
        unused = {
            ("state", port.name)
            for (port, _), wanted in zip(self.failed.pairs, self.wanted, strict=True)
            if port.kind == "state" and not wanted and self.first == 0
        }
        order = {"state": 0, "sequence": 1, "invariant": 2}
        for key in sorted(gradients, key=lambda key: order[key[0]]):
            if key not in unused and kind_of(gradients[key]) is not None:
                return key
        sums = self.added(totals, gradients)
        return next((("total", name) for name, value in sums.items() if kind_of(value) is not None), None)


def _step_by_step(block: _Block, leaving: Gradients, totals: Gradients, passing: Passing) -> Origin | None:
    """The origin within a block, from its last step to its first."""
    failed = block.failed
    states_before: list[States] = [{name: value.detach() for name, value in failed.states.items()}]
    with torch.no_grad():
        for time in range(failed.length - 1):
            states_before.append(states_in(failed.of(time, time + 1, states_before[-1]).run()))
    for time in reversed(range(failed.length)):
        step = block.first + time
        one_step = failed.of(time, time + 1, states_before[time])
        single = _Block(one_step, step, _cut(block.arriving, time, time + 1), block.originals)
        gradients = single.gradients(leaving, _passing_of(passing, step, step + 1))
        wrong = single.wrong(gradients, totals)
        if wrong is not None and wrong[0] == "total":
            kind = kind_of(single.added(totals, gradients)[wrong[1]]) or "nan"
            return Origin("backward", kind, "the sum over steps", wrong[1], step)
        if wrong is not None:
            return _in_step(single.failed, step, single.arriving, leaving, passing.limit, wrong)
        totals = single.added(totals, gradients)
        leaving = states_in(gradients)
    return None


def _in_step(
    failed: FailedCall, step: int, arriving: Gradients, leaving: Gradients, limit: float | None, wrong: tuple[str, str]
) -> Origin:
    """Go from the input whose gradient is not finite, through values whose gradients are not, to the first operator.

    failed     the step alone; values to be differentiated require it
    arriving   the gradients of its outputs, (1, batch, ...)
    leaving    those of the state after it
    limit      of their norm, if the gradient method sets one
    wrong      kind and name of the input
    """
    loop = failed.loop
    with torch.enable_grad():
        values = failed.nodes()
        pairs = _with_gradients(failed, values, arriving, leaving, limit)
    nodes = [node for node, value in values.items() if isinstance(value, Tensor) and value.requires_grad]
    results, incoming = zip(*pairs, strict=True)
    computed = torch.autograd.grad(results, [values[node] for node in nodes], incoming, allow_unused=True)
    gradients = {node: gradient for node, gradient in zip(nodes, computed, strict=True) if gradient is not None}
    ports = zip(loop.inputs, loop.placeholders, strict=True)
    node = next(node for port, node in ports if (port.kind, port.name) == wrong)
    rank = {node: index for index, node in enumerate(loop.graph.nodes)}
    while True:
        onwards = [user for user in _readers(node) if user in gradients and kind_of(gradients[user]) is not None]
        if not onwards:
            break
        node = max(onwards, key=rank.__getitem__)
    kind = (kind_of(gradients[node]) if node in gradients else None) or "nan"
    row = _first_row(failed, node, gradients[node]) if node in gradients else None
    blamed = next((user for user in node.users if _makes_it(user, node, values, gradients)), None)
    if blamed is None:  # each of them is finite, their sum is not; or the gradient method's weight made it so
        return Origin("backward", kind, "the sum over uses", node.meta.get("label"), step, row)
    return made_by(blamed, "backward", kind, step, row)


def _with_gradients(
    failed: FailedCall, values: Mapping[fx.Node, Any], arriving: Gradients, leaving: Gradients, limit: float | None
) -> list[tuple[Tensor, Tensor]]:
    """The results of a step, each with the gradient that arrives at it; those without one are left out."""
    results = list(zip(failed.loop.outputs, failed.loop.results, strict=True))
    pairs = [(values[node], arriving.get(port.name)) for port, node in results if port.kind == "sequence"]
    pairs = [(value, None if gradient is None else gradient[0]) for value, gradient in pairs]
    states = [(values[node], leaving.get(port.name)) for port, node in results if port.kind == "state"]
    if limit is not None:
        past = None if failed.past is None else failed.past[0]
        changed = with_clipped_gradient([value for value, _ in states], limit, past, None)
        states = [(value, gradient) for value, (_, gradient) in zip(changed, states, strict=True)]
    every = (*pairs, *states)
    return [(value, gradient) for value, gradient in every if gradient is not None and value.requires_grad]


def _readers(node: fx.Node) -> list[fx.Node]:
    """The nodes that read a value; for an operator with several results, each of these."""
    readers: list[fx.Node] = []
    for user in node.users:
        parts = [part for part in user.users if is_getitem(part)]
        readers += parts if parts and not isinstance(user.meta.get("val"), Tensor) else [user]
    return readers


def _makes_it(user: fx.Node, node: fx.Node, values: Mapping[fx.Node, Any], gradients: Mapping[fx.Node, Tensor]) -> bool:
    """Whether the derivative of this operator alone gives the value a gradient that is not finite."""
    if user.op != "call_function":
        return False
    read = {source: _detached(values[source]) for source in user.all_input_nodes}
    leaf = read[node] = read[node].requires_grad_()
    with torch.enable_grad():
        result = evaluated(user, read)
    if isinstance(result, Tensor):
        pairs = [(result, gradients.get(user))]
    else:
        pairs = [(result[arguments(part)[1]], gradients.get(part)) for part in user.users if is_getitem(part)]
    pairs = [(value, gradient) for value, gradient in pairs if gradient is not None and value.requires_grad]
    if not pairs:
        return False
    results, incoming = zip(*pairs, strict=True)
    (gradient,) = torch.autograd.grad(results, [leaf], incoming, allow_unused=True)
    return gradient is not None and kind_of(gradient) is not None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _first_row(failed: FailedCall, node: fx.Node, gradient: Tensor) -> int | None:
    axis = failed.row_axis(node, gradient)
    if axis is None:
        return None
    rows = gradient.isfinite().logical_not().movedim(axis, 0).reshape(failed.batch, -1).any(1).nonzero()
    return int(rows[0]) if len(rows) else None
