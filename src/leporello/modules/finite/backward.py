"""The backward sweep, looked through: which operator's gradient was the first that is not finite.

Blocks of steps are differentiated at once by torch's autograd, as the engine `reference` does; a block that gave
something that is not finite is differentiated again one step after another; `operators` looks into the first such step.

Known shortcomings: weights that a gradient method draws are drawn anew; overlapping windows and methods that go forward
in time are looked through as exact back-propagation. Knows Loops and gradients; knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from leporello.engine.passing import ALL, Passing
from leporello.modules.finite.operators import in_step
from leporello.modules.finite.origin import Origin, kind_of
from leporello.modules.finite.window import States, Window, states_in

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
