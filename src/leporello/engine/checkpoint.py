"""A plan over a sequence as one differentiable function that keeps some states only.

Forward keeps the state at the borders of windows; backward takes the windows from the last to the first, runs each
again from its border, this time keeping what its own backward sweep reads, and goes back through it. With another
level a window is treated as a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leporello.engine import autograd, reference
from leporello.engine.autograd import Back, Gradients, incoming_gradients, run_sweep, saved_tensors
from leporello.engine.plan import Plan
from leporello.engine.state_gradient import ClipCount, Passing
from leporello.engine.target import same_invariants
from leporello.engine.wiring import taken

Lengths = Sequence[int]  # of windows: from the outermost level to the innermost


def call(
    plan: Plan, values: Sequence[Tensor], length: int, batch: int, lengths: Lengths, passing: Passing
) -> Sequence[Tensor]:
    """Outputs in the order of the loop's, differentiable with respect to the inputs the plan wants.

    lengths   of the windows of each level
    """
    wanted = any(value.requires_grad and asked for value, asked in zip(values, plan.wanted, strict=True))
    if not (torch.is_grad_enabled() and wanted):
        return autograd.call(plan, values, length, batch, passing)
    if plan.target is None:
        counted = None if passing.limit is None else plan.note_clipped(ClipCount(), values, length, batch)
        return _by_reference(plan, list(values), length, batch, tuple(lengths), passing, counted)
    found: Sequence[Tensor] = _Windows.apply(plan, length, batch, tuple(lengths), passing, *values)
    return found


def windows(length: int, every: int) -> list[tuple[int, int]]:
    """Stretches of so many steps, the last one perhaps shorter."""
    return [(start, min(start + every, length)) for start in range(0, length, every)]


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, length: int, batch: int, lengths: Lengths, passing: Passing, *values: Tensor
    ) -> tuple[Tensor, ...]:
        outputs = _Outputs(plan, length, batch)
        with same_invariants():
            borders = _borders(plan, list(values), batch, windows(length, lengths[0]), lengths[-1], outputs.put)
        ctx.plan, ctx.length, ctx.batch, ctx.lengths, ctx.passing = plan, length, batch, lengths, passing
        ctx.save_for_backward(*values, *[state for border in borders[1:] for state in border])
        ctx.set_materialize_grads(False)
        own = autograd.without_aliases(outputs.all(), range(len(plan.loop.outputs)), plan.loop.outputs, values)
        if plan.wiring.fixed:
            ctx.mark_non_differentiable(*[own[index] for index in plan.wiring.fixed])
        return tuple(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        plan, length, batch = ctx.plan, ctx.length, ctx.batch
        saved = saved_tensors(ctx)
        count, states = len(plan.wanted), _places(plan)
        values, kept = list(saved[:count]), saved[count:]
        if torch.is_grad_enabled():
            own = Back(plan, values, (), length, batch).differentiable(gradients, None)
        else:
            first = [values[place] for place in states.values()]
            stretches, leaves = windows(length, ctx.lengths[0]), len(states)
            later = [list(kept[at * leaves : (at + 1) * leaves]) for at in range(len(stretches) - 1)]
            windowed = _WindowedBack(plan, values, gradients, length, batch)
            with same_invariants():
                windowed.back(stretches, [first, *later], ctx.lengths[1:])
            own = windowed.gradients_of_inputs()
        return (None, None, None, None, None, *own)


@dataclass
class _Outputs:
    """The outputs of a call while its windows are run."""

    plan: Plan
    length: int
    batch: int
    made: dict[int, Tensor] = field(default_factory=dict)

    def put(self, start: int, end: int, outputs: Sequence[Tensor]) -> None:
        for index, (port, value) in enumerate(zip(self.plan.loop.outputs, outputs, strict=True)):
            if port.kind == "sequence":
                if index not in self.made:
                    self.made[index] = value.new_empty(self.length, *value.shape[1:])
                self.made[index][start:end] = value
            elif port.kind == "total" and index in self.made:
                self.made[index] = self.made[index] + value
            else:
                self.made[index] = value

    def all(self) -> list[Tensor]:
        return [self.made[index] for index in range(len(self.plan.loop.outputs))]


def _places(plan: Plan) -> dict[str, int]:
    """Where states stand among a loop's inputs."""
    return {port.name: index for index, port in enumerate(plan.loop.inputs) if port.kind == "state"}


def _cut(plan: Plan, values: Sequence[Tensor], start: int, end: int, states: Sequence[Tensor]) -> list[Tensor]:
    """The values of a window that begins with some states."""
    timed = ("sequence", "draw")
    found = [v[start:end] if p.kind in timed else v for p, v in zip(plan.loop.inputs, values, strict=True)]
    for place, state in zip(_places(plan).values(), states, strict=True):
        found[place] = state
    return found


def _borders(
    plan: Plan,
    values: list[Tensor],
    batch: int,
    stretches: Sequence[tuple[int, int]],
    piece: int,
    put: Callable[[int, int, Sequence[Tensor]], None] | None = None,
) -> list[list[Tensor]]:
    """The states before each window, by running them; the last window is run only if its outputs are asked for.

    piece   steps that are run together: what they need beside their results is there only as long
    """
    states = [values[place] for place in _places(plan).values()]
    found = []
    for start, end in stretches:
        found.append(states)
        if put is None and end == stretches[-1][1]:
            break
        for first, last in [(start + a, start + b) for a, b in windows(end - start, piece)]:
            cut = _cut(plan, values, first, last, states)
            outputs, _ = run_sweep(plan.plain, last - first, batch, [cut[place] for place in plan.plain_places])
            after = {p.name: v for p, v in zip(plan.loop.outputs, outputs, strict=True) if p.kind == "state"}
            states = [after[name].clone() for name in _places(plan)]
            if put is not None:
                put(first, last, outputs)
    return found


class _WindowedBack:
    """The gradient of one call, window by window, and what has been summed so far."""

    def __init__(
        self, plan: Plan, values: list[Tensor], gradients: Sequence[Tensor | None], length: int, batch: int
    ) -> None:
        self.plan, self.values, self.gradients, self.length, self.batch = plan, values, gradients, length, batch
        self.total: Gradients = [None] * len(values)
        ports = list(enumerate(plan.loop.outputs))
        self.arriving = {port.name: gradients[index] for index, port in ports if port.kind == "state"}
        made = enumerate(plan.backward.loop.outputs)
        self.leaving = {port.name: index for index, port in made if port.kind == "state"}
        self.clip_count: Tensor | float = 0.0

    def back(self, stretches: list[tuple[int, int]], borders: list[list[Tensor]], lengths: Lengths) -> None:
        """Through windows, from the last to the first."""
        while stretches:
            (start, end), states = stretches.pop(), borders.pop()
            if lengths and end - start > lengths[0]:
                inner = [(start + first, start + last) for first, last in windows(end - start, lengths[0])]
                begun = list(self.values)
                for place, state in zip(_places(self.plan).values(), states, strict=True):
                    begun[place] = state
                self.back(inner, _borders(self.plan, begun, self.batch, inner, lengths[-1]), lengths[1:])
            else:
                self._window(start, end, states)

    def _window(self, start: int, end: int, states: Sequence[Tensor]) -> None:
        plan, wired, steps, batch = self.plan, self.plan.wiring, end - start, self.batch
        values = _cut(plan, self.values, start, end, states)
        outputs, befores = run_sweep(plan.forward, steps, batch, [values[place] for place in wired.forward])
        kept = taken(wired.kept, (values, outputs, befores))
        incoming = incoming_gradients(wired.incoming, self._entering(start, end), steps, batch, zeros=False)
        pools = (values, (), (), kept, incoming, wired.constants, (None,))
        results, _ = run_sweep(plan.backward, steps, batch, taken(wired.backward, pools))
        self.arriving = {name: results[place].clone() for name, place in self.leaving.items()}
        if wired.clip_count is not None:
            self.clip_count = self.clip_count + results[wired.clip_count]
        for index, place in enumerate(wired.results):
            if place is not None:
                self._add(index, results[place], start, end)

    def _entering(self, start: int, end: int) -> Gradients:
        """The gradients of a window's outputs."""
        found: Gradients = []
        for port, gradient in zip(self.plan.loop.outputs, self.gradients, strict=True):
            if port.kind == "state":
                found.append(self.arriving.get(port.name))
            elif port.kind == "sequence" and gradient is not None:
                found.append(gradient[start:end])
            else:
                found.append(gradient)
        return found

    def _add(self, index: int, value: Tensor, start: int, end: int) -> None:
        port, total = self.plan.loop.inputs[index], self.total[index]
        if port.kind == "sequence":
            if total is None:
                total = self.total[index] = value.new_empty(self.length, *value.shape[1:])
            total[start:end] = value
        elif port.kind == "state":
            self.total[index] = self.arriving[port.name]
        else:
            self.total[index] = value.clone() if total is None else total.add_(value)

    def gradients_of_inputs(self) -> Gradients:
        if self.plan.wiring.clip_count is not None:
            self.plan.note_clipped(ClipCount(self.clip_count), self.values, self.length, self.batch)
        return self.total


def _by_reference(
    plan: Plan,
    values: list[Tensor],
    length: int,
    batch: int,
    lengths: Lengths,
    passing: Passing,
    counted: ClipCount | None,
    first: int = 0,
) -> list[Tensor]:
    """The same with torch's own checkpoints, window by window."""
    if not lengths:
        return reference.run(plan.loop, plan.step, values, length, batch, passing, counted)
    states = [values[place] for place in _places(plan).values()]
    columns: list[list[Tensor]] = [[] for _ in plan.loop.outputs]
    for start, end in windows(length, lengths[0]):
        own = partial(_inner, plan, end - start, batch, lengths[1:], passing, counted)
        outputs = checkpoint(own, *_cut(plan, values, start, end, states), use_reentrant=False)
        for column, value in zip(columns, outputs, strict=True):
            column.append(value)
        after = {p.name: c[-1] for p, c in zip(plan.loop.outputs, columns, strict=True) if p.kind == "state"}
        states = [after[name] for name in _places(plan)]
    return [_together(port.kind, column) for port, column in zip(plan.loop.outputs, columns, strict=True)]


def _inner(
    plan: Plan, length: int, batch: int, lengths: Lengths, passing: Passing, counted: ClipCount | None, *values: Tensor
) -> list[Tensor]:
    return _by_reference(plan, list(values), length, batch, lengths, passing, counted)


def _together(kind: str, column: list[Tensor]) -> Tensor:
    if kind == "state":
        return column[-1]
    return torch.cat(column) if kind == "sequence" else torch.stack(column).sum(0)
