"""Checkpointing: a plan over a sequence as one differentiable function that keeps only some of the states.

The forward pass keeps the state at the borders of windows. The backward pass takes the windows from the last to the
first: it runs each again from its border, this time saving what its backward sweep reads, and then runs that sweep.
With another level a window is treated as a sequence of its own.
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
from leporello.engine.autograd import BackwardPass, Gradients, run_backward, run_sweep, saved_tensors
from leporello.engine.plan import Plan
from leporello.engine.state_gradient import ClipCount, Passing
from leporello.engine.target import same_invariants

Lengths = Sequence[int]  # of windows, in steps: from the outermost level to the innermost


def call(
    plan: Plan, values: Sequence[Tensor], length: int, batch: int, lengths: Lengths, passing: Passing
) -> Sequence[Tensor]:
    """Outputs in the order of the Loop's, differentiable with respect to the inputs whose gradient the plan wants.

    Where no gradient is needed, it is `autograd.call`.

    lengths   of the windows of each level, from the outermost to the innermost
    """
    needs_gradient = any(value.requires_grad and wanted for value, wanted in zip(values, plan.wanted, strict=True))
    if not (torch.is_grad_enabled() and needs_gradient):
        return autograd.call(plan, values, length, batch, passing)
    if plan.target is None:
        counted = None if passing.limit is None else plan.note_clipped(ClipCount(), values, length, batch)
        return _by_reference(plan, list(values), length, batch, tuple(lengths), passing, counted)
    outputs: Sequence[Tensor] = _Checkpointed.apply(plan, length, batch, tuple(lengths), passing, *values)
    return outputs


def windows(length: int, every: int) -> list[tuple[int, int]]:
    """Windows of `every` steps as (start, end); the last one may be shorter."""
    return [(start, min(start + every, length)) for start in range(0, length, every)]


class _Checkpointed(torch.autograd.Function):
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
        results = autograd.without_aliases(outputs.all(), range(len(plan.loop.outputs)), plan.loop.outputs, values)
        if plan.wiring.fixed:
            ctx.mark_non_differentiable(*[results[index] for index in plan.wiring.fixed])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        plan, length, batch = ctx.plan, ctx.length, ctx.batch
        saved = saved_tensors(ctx)
        count, states = len(plan.wanted), _state_places(plan)
        values, kept = list(saved[:count]), saved[count:]
        if torch.is_grad_enabled():
            input_gradients = BackwardPass(plan, values, (), length, batch).differentiable(gradients, None)
        else:
            first = [values[place] for place in states.values()]
            outermost, leaves = windows(length, ctx.lengths[0]), len(states)
            later = [list(kept[index * leaves : (index + 1) * leaves]) for index in range(len(outermost) - 1)]
            backward_pass = _WindowedBackwardPass(plan, values, gradients, length, batch)
            with same_invariants():
                backward_pass.run(outermost, [first, *later], ctx.lengths[1:])
            input_gradients = backward_pass.gradients_of_inputs()
        return (None, None, None, None, None, *input_gradients)


@dataclass
class _Outputs:
    """The outputs of a call, collected window by window."""

    plan: Plan
    length: int
    batch: int
    values: dict[int, Tensor] = field(default_factory=dict)  # by index of the output

    def put(self, start: int, end: int, outputs: Sequence[Tensor]) -> None:
        """Add the outputs of the steps from start to end."""
        for index, (port, value) in enumerate(zip(self.plan.loop.outputs, outputs, strict=True)):
            if port.kind == "sequence":
                if index not in self.values:
                    self.values[index] = value.new_empty(self.length, *value.shape[1:])
                self.values[index][start:end] = value
            elif port.kind == "total" and index in self.values:
                self.values[index] = self.values[index] + value
            else:
                self.values[index] = value

    def all(self) -> list[Tensor]:
        return [self.values[index] for index in range(len(self.plan.loop.outputs))]


def _state_places(plan: Plan) -> dict[str, int]:
    """The index of each state among the Loop's inputs."""
    return {port.name: index for index, port in enumerate(plan.loop.inputs) if port.kind == "state"}


def _window_inputs(
    plan: Plan, values: Sequence[Tensor], start: int, end: int, states: Sequence[Tensor]
) -> list[Tensor]:
    """The Loop's inputs for the steps from start to end, with `states` as the states before them."""
    timed = ("sequence", "draw")
    inputs = [v[start:end] if p.kind in timed else v for p, v in zip(plan.loop.inputs, values, strict=True)]
    for place, state in zip(_state_places(plan).values(), states, strict=True):
        inputs[place] = state
    return inputs


def _borders(
    plan: Plan,
    values: list[Tensor],
    batch: int,
    stretches: Sequence[tuple[int, int]],
    piece: int,
    put: Callable[[int, int, Sequence[Tensor]], None] | None = None,
) -> list[list[Tensor]]:
    """For each window the leaves of the state before it, computed by running the windows.

    values      the call's, with the states before the first window
    stretches   the windows as (start, end)
    piece       steps that are run together: the temporary memory of a sweep grows with them
    put         takes start, end and outputs of each piece; if None, the last window is not run: nothing needs it
    """
    states = [values[place] for place in _state_places(plan).values()]
    borders = []
    for start, end in stretches:
        borders.append(states)
        if put is None and end == stretches[-1][1]:
            break
        for first, last in [(start + a, start + b) for a, b in windows(end - start, piece)]:
            inputs = _window_inputs(plan, values, first, last, states)
            outputs, _ = run_sweep(plan.plain, last - first, batch, [inputs[place] for place in plan.plain_places])
            after = {p.name: v for p, v in zip(plan.loop.outputs, outputs, strict=True) if p.kind == "state"}
            states = [after[name].clone() for name in _state_places(plan)]
            if put is not None:
                put(first, last, outputs)
    return borders


class _WindowedBackwardPass:
    """The backward pass of one call, window by window.

    total        the gradients of the call's inputs, as far as they are computed
    arriving     the gradients of the states after the present window, by name; None is zero
    leaving      for each state the index of its gradient among the backward sweep's outputs
    clip_count   how often the gradient was clipped so far
    """

    def __init__(
        self, plan: Plan, values: list[Tensor], gradients: Sequence[Tensor | None], length: int, batch: int
    ) -> None:
        self.plan, self.values, self.gradients, self.length, self.batch = plan, values, gradients, length, batch
        self.total: Gradients = [None] * len(values)
        ports = list(enumerate(plan.loop.outputs))
        self.arriving = {port.name: gradients[index] for index, port in ports if port.kind == "state"}
        results = enumerate(plan.backward.loop.outputs)
        self.leaving = {port.name: index for index, port in results if port.kind == "state"}
        self.clip_count: Tensor | float = 0.0

    def run(self, stretches: list[tuple[int, int]], borders: list[list[Tensor]], lengths: Lengths) -> None:
        """Go back through windows, from the last to the first; `total` is complete afterwards.

        Both lists are emptied on the way, so that the memory of a border is free once its window is done.

        stretches   the windows as (start, end)
        borders     the states before each window
        lengths     of the windows of inner levels; empty at the innermost
        """
        while stretches:
            (start, end), states = stretches.pop(), borders.pop()
            if lengths and end - start > lengths[0]:
                inner = [(start + first, start + last) for first, last in windows(end - start, lengths[0])]
                values = list(self.values)
                for place, state in zip(_state_places(self.plan).values(), states, strict=True):
                    values[place] = state
                self.run(inner, _borders(self.plan, values, self.batch, inner, lengths[-1]), lengths[1:])
            else:
                self._window(start, end, states)

    def _window(self, start: int, end: int, states: Sequence[Tensor]) -> None:
        """Run the forward and the backward sweep of one window; update `arriving`, `total` and `clip_count`."""
        plan, wired, steps, batch = self.plan, self.plan.wiring, end - start, self.batch
        values = _window_inputs(plan, self.values, start, end, states)
        outputs, befores = run_sweep(plan.forward, steps, batch, wired.forward_inputs(values))
        kept = wired.kept_of(values, outputs, befores)
        results = run_backward(plan, values, kept, self._entering(start, end), steps, batch, None)
        self.arriving = {name: results[place].clone() for name, place in self.leaving.items()}
        if wired.clip_count is not None:
            self.clip_count = self.clip_count + results[wired.clip_count]
        for index, place in enumerate(wired.results):
            if place is not None:
                self._add(index, results[place], start, end)

    def _entering(self, start: int, end: int) -> Gradients:
        """The gradients of a window's outputs; of its last state what the window after it has passed back."""
        gradients: Gradients = []
        for port, gradient in zip(self.plan.loop.outputs, self.gradients, strict=True):
            if port.kind == "state":
                gradients.append(self.arriving.get(port.name))
            elif port.kind == "sequence" and gradient is not None:
                gradients.append(gradient[start:end])
            else:
                gradients.append(gradient)
        return gradients

    def _add(self, index: int, value: Tensor, start: int, end: int) -> None:
        """Enter a window's input gradient into `total`: a sequence's steps are set, a state's replaced, others added.

        index   of the input
        value   its gradient in the window from start to end
        """
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
) -> list[Tensor]:
    """`call` on the engine `reference`, with torch's own checkpoints, window by window.

    lengths   of the windows of this level and the inner ones; empty where the steps are run without checkpoints
    counted   counts where a gradient was clipped; None without a limit
    """
    if not lengths:
        return reference.run(plan.loop, plan.step, values, length, batch, passing, counted)
    states = [values[place] for place in _state_places(plan).values()]
    columns: list[list[Tensor]] = [[] for _ in plan.loop.outputs]
    for start, end in windows(length, lengths[0]):
        window = partial(_inner, plan, end - start, batch, lengths[1:], passing, counted)
        outputs = checkpoint(window, *_window_inputs(plan, values, start, end, states), use_reentrant=False)
        for column, value in zip(columns, outputs, strict=True):
            column.append(value)
        after = {p.name: c[-1] for p, c in zip(plan.loop.outputs, columns, strict=True) if p.kind == "state"}
        states = [after[name] for name in _state_places(plan)]
    return [_together(port.kind, column) for port, column in zip(plan.loop.outputs, columns, strict=True)]


def _inner(
    plan: Plan, length: int, batch: int, lengths: Lengths, passing: Passing, counted: ClipCount | None, *values: Tensor
) -> list[Tensor]:
    return _by_reference(plan, list(values), length, batch, lengths, passing, counted)


def _together(kind: str, column: list[Tensor]) -> Tensor:
    """An output of the whole sequence, from those of its windows in order."""
    if kind == "state":
        return column[-1]
    return torch.cat(column) if kind == "sequence" else torch.stack(column).sum(0)
