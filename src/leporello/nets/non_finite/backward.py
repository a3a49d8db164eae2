"""The backward sweep, looked through: which operator's gradient was the first that is not finite.

Blocks of steps are differentiated at once by torch's autograd, as the engine `reference` does; a block that gave
something that is not finite is differentiated again one step after another; `operators` looks into the first such step.

Known shortcomings: weights that a gradient method draws are drawn anew; overlapping windows and methods that go forward
in time are looked through as exact back-propagation. Knows Loops and gradients; knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.crossing import clipped
from leporello.engine.passing import ALL, Passing
from leporello.loop.graph import arguments
from leporello.loop.value_classes import is_part
from leporello.nets.non_finite.forward import States, Window, evaluated, states_in
from leporello.nets.non_finite.origin import Origin, kind_of, made_by

Gradients = dict[str, Tensor]  # by name


def backward(window: Window, starts: Mapping[int, States], arriving: Gradients, passing: Passing) -> Origin | None:
    """Go back from the gradients of the outputs.

    starts     the state before each block, as the forward sweep found it
    arriving   the gradient of each output sequence, (length, batch, ...)
    """
    passing = Passing(limit=passing.limit) if passing.count > 1 else passing
    leaving: Gradients = {}  # of the state behind the block
    totals: Gradients = {}
    for first, last in window.blocks(reverse=True):
        block = _Block(window.of(first, last, starts[first]), first, _cut(arriving, first, last), window.values)
        found = block.gradients(leaving, _passing_of(passing, first, last))
        if block.wrong(found, totals) is not None:
            return _step_by_step(block, leaving, totals, passing)
        totals = block.added(totals, found)
        leaving = {name: value for (kind, name), value in found.items() if kind == "state"}
    return None


def _cut(arriving: Gradients, first: int, last: int) -> Gradients:
    return {name: value[first:last] for name, value in arriving.items()}


def _passing_of(passing: Passing, first: int, last: int) -> Passing:
    weights = None if passing.weights is None else passing.weights[first:last]
    return ALL if weights is None and passing.limit is None else Passing(weights, None, passing.limit)


class _Block:
    """A stretch of steps with what arrives at its outputs.

    wanted   for each input whether the call asks for its gradient; states are differentiated in any case
    """

    def __init__(self, window: Window, first: int, arriving: Gradients, asked: tuple[Tensor, ...]) -> None:
        self.first, self.arriving = first, arriving
        self.wanted = [value.requires_grad for value in asked]
        self.asked = asked
        carried = [
            wanted or (port.kind == "state" and (value.is_floating_point() or value.is_complex()))
            for (port, value), wanted in zip(window.pairs, self.wanted, strict=True)
        ]
        leaves = [
            value.detach().requires_grad_() if there else value.detach()
            for value, there in zip(window.values, carried, strict=True)
        ]
        self.window = replace(window, values=tuple(leaves))

    def gradients(self, leaving: Gradients, passing: Passing) -> dict[tuple[str, str], Tensor]:
        """Of every input that has one, by kind and name."""
        with torch.enable_grad():
            made = self.window.run(passing)
        pairs = [(value, self.arriving.get(name)) for (kind, name), value in made.items() if kind == "sequence"]
        pairs += [(value, leaving.get(name)) for name, value in states_in(made).items()]
        pairs = [(value, gradient) for value, gradient in pairs if gradient is not None and value.requires_grad]
        sources = [(port, value) for port, value in self.window.pairs if value.requires_grad]
        if not pairs or not sources:
            return {}
        values, gradients = zip(*pairs, strict=True)
        found = torch.autograd.grad(values, [value for _, value in sources], gradients, allow_unused=True)
        named = zip(sources, found, strict=True)
        return {(port.kind, port.name): value for (port, _), value in named if value is not None}

    def added(self, totals: Gradients, found: Mapping[tuple[str, str], Tensor]) -> Gradients:
        """The gradients of what all steps share, summed over the steps so far."""
        own = {name: value for (kind, name), value in found.items() if kind == "invariant"}
        return totals | {name: totals[name] + value if name in totals else value for name, value in own.items()}

    def wrong(self, found: Mapping[tuple[str, str], Tensor], totals: Gradients) -> tuple[str, str] | None:
        """The first gradient that is not finite and that anybody reads: of states, inputs, then invariants."""
        nobody = {
            ("state", port.name)
            for (port, _), wanted in zip(self.window.pairs, self.wanted, strict=True)
            if port.kind == "state" and not wanted and self.first == 0
        }
        order = {"state": 0, "sequence": 1, "invariant": 2}
        for key in sorted(found, key=lambda key: order[key[0]]):
            if key not in nobody and kind_of(found[key]) is not None:
                return key
        sums = self.added(totals, found)
        return next((("total", name) for name, value in sums.items() if kind_of(value) is not None), None)


def _step_by_step(block: _Block, leaving: Gradients, totals: Gradients, passing: Passing) -> Origin | None:
    window = block.window
    befores: list[States] = [{name: value.detach() for name, value in window.states.items()}]
    with torch.no_grad():
        for time in range(window.length - 1):
            befores.append(states_in(window.of(time, time + 1, befores[-1]).run()))
    for time in reversed(range(window.length)):
        step = block.first + time
        own = _Block(window.of(time, time + 1, befores[time]), step, _cut(block.arriving, time, time + 1), block.asked)
        found = own.gradients(leaving, _passing_of(passing, step, step + 1))
        wrong = own.wrong(found, totals)
        if wrong is not None and wrong[0] == "total":
            kind = kind_of(own.added(totals, found)[wrong[1]]) or "nan"
            return Origin("backward", kind, "the sum over steps", wrong[1], step)
        if wrong is not None:
            return in_step(own.window, step, own.arriving, leaving, passing.limit, wrong)
        totals = own.added(totals, found)
        leaving = {name: value for (kind, name), value in found.items() if kind == "state"}
    return None


def in_step(
    window: Window, step: int, arriving: Gradients, leaving: Gradients, limit: float | None, wrong: tuple[str, str]
) -> Origin:
    """Go on from the input whose gradient is wrong, through values whose gradients are, to the operator that began.

    window     the step alone; what is to be differentiated requires it
    arriving   the gradients of its outputs, (1, batch, ...)
    leaving    those of the state behind it
    limit      that a gradient method sets to the latter
    wrong      kind and name of the input
    """
    loop = window.loop
    with torch.enable_grad():
        values = window.nodes()
        pairs = _with_gradients(window, values, arriving, leaving, limit)
    known = [node for node, value in values.items() if isinstance(value, Tensor) and value.requires_grad]
    heard, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(heard, [values[node] for node in known], given, allow_unused=True)
    gradients = {node: gradient for node, gradient in zip(known, found, strict=True) if gradient is not None}
    ports = zip(loop.inputs, loop.placeholders, strict=True)
    node = next(node for port, node in ports if (port.kind, port.name) == wrong)
    rank = {node: index for index, node in enumerate(loop.graph.nodes)}
    while True:
        onwards = [user for user in _readers(node) if user in gradients and kind_of(gradients[user]) is not None]
        if not onwards:
            break
        node = max(onwards, key=rank.__getitem__)
    kind = (kind_of(gradients[node]) if node in gradients else None) or "nan"
    row = _row(window, node, gradients[node]) if node in gradients else None
    blamed = next((user for user in node.users if _makes_it(user, node, values, gradients)), None)
    if blamed is None:  # each of them is finite, their sum is not; or the gradient method's weight made it so
        return Origin("backward", kind, "the sum over uses", node.meta.get("label"), step, row)
    return made_by(blamed, "backward", kind, step, row)


def _with_gradients(
    window: Window, values: Mapping[fx.Node, Any], arriving: Gradients, leaving: Gradients, limit: float | None
) -> list[tuple[Tensor, Tensor]]:
    """The results of a step, each with the gradient that arrives at it."""
    results = list(zip(window.loop.outputs, window.loop.results, strict=True))
    pairs = [(values[node], arriving.get(port.name)) for port, node in results if port.kind == "sequence"]
    pairs = [(value, None if gradient is None else gradient[0]) for value, gradient in pairs]
    states = [(values[node], leaving.get(port.name)) for port, node in results if port.kind == "state"]
    if limit is not None:
        past = None if window.past is None else window.past[0]
        changed = clipped([value for value, _ in states], limit, past, None)
        states = [(value, gradient) for value, (_, gradient) in zip(changed, states, strict=True)]
    return [(value, given) for value, given in (*pairs, *states) if given is not None and value.requires_grad]


def _readers(node: fx.Node) -> list[fx.Node]:
    """The values made of a value; of an operator with several results, each of them."""
    found: list[fx.Node] = []
    for user in node.users:
        parts = [part for part in user.users if is_part(part)]
        found += parts if parts and not isinstance(user.meta.get("val"), Tensor) else [user]
    return found


def _makes_it(user: fx.Node, node: fx.Node, values: Mapping[fx.Node, Any], gradients: Mapping[fx.Node, Tensor]) -> bool:
    """Whether the operator alone makes a gradient for the value that is not finite."""
    if user.op != "call_function":
        return False
    read = {source: _loose(values[source]) for source in user.all_input_nodes}
    leaf = read[node] = read[node].requires_grad_()
    with torch.enable_grad():
        made = evaluated(user, read)
    if isinstance(made, Tensor):
        pairs = [(made, gradients.get(user))]
    else:
        pairs = [(made[arguments(part)[1]], gradients.get(part)) for part in user.users if is_part(part)]
    pairs = [(value, gradient) for value, gradient in pairs if gradient is not None and value.requires_grad]
    if not pairs:
        return False
    heard, arriving = zip(*pairs, strict=True)
    (found,) = torch.autograd.grad(heard, [leaf], arriving, allow_unused=True)
    return found is not None and kind_of(found) is not None


def _loose(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _row(window: Window, node: fx.Node, gradient: Tensor) -> int | None:
    axis = window.row_axis(node, gradient)
    if axis is None:
        return None
    rows = gradient.isfinite().logical_not().movedim(axis, 0).reshape(window.batch, -1).any(1).nonzero()
    return int(rows[0]) if len(rows) else None
