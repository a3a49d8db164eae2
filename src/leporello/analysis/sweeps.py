"""Two sweeps over the steps of a call: gradients of all losses back, or tangents of all inputs ahead, side by side.

A sweep takes each step once, on as many copies of the batch as there are losses (or inputs) to follow. The slow twin,
one call of autograd for each of them, is in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.analysis.progress_bar import with_progress_bar
from leporello.analysis.step_by_step import MAX_ROWS_AT_ONCE, StepByStepRun


@dataclass(frozen=True)
class SweptStep:
    """What a sweep holds at step k.

    first    the step of the first loss (of the first input) that the sweep carries; the others follow step by step
    values   back: the gradients with respect to the state before step k, (losses, copies, batch, size of the state),
             copies being the gradients that each loss carries; ahead: the tangents of the output of step k,
             (inputs, size of an input, batch, size of the output)
    inputs   back: the gradients with respect to the inputs of step k, (losses, copies, batch, size of an input); None
             where not asked for
    """

    k: int
    first: int
    values: Tensor
    inputs: Tensor | None = None


def sweep_back(run: StepByStepRun, output_gradients: Tensor, *, inputs: bool = False) -> Iterator[SweptStep]:
    """Gradients of the loss of each step t with respect to the state before each step k <= t: k runs backwards.

        gradient(t, k) = gradient(t, k + 1) dh(k + 1)/dh(k)   for t > k
        gradient(t, t) = output_gradients(t) do(t)/dh(t)

    Losses are taken in blocks of steps, so that the gradients carried at a time fit into memory: for each block, one
    `SweptStep` for each step k from the block's end back to the first.

    output_gradients   (length, copies, batch, outputs): of the output of each step, several gradients each
    inputs             whether the gradients with respect to the inputs are wanted too
    """
    copies = output_gradients.shape[1]
    zero = run.states.new_zeros(1, copies, run.batch, run.state_layout.size)
    carried = zero[:0]
    for start, end, time in with_progress_bar(_blocks_back(run.length, copies * run.batch), "gradients go back"):
        if time == end - 1:
            carried = zero[:0]
        loss_joins = time >= start
        state_gradients = torch.cat([zero, carried]) if loss_joins else carried
        incoming = output_gradients.new_zeros(len(state_gradients), *output_gradients.shape[1:])
        if loss_joins:
            incoming[0] = output_gradients[time]
        carried, input_gradients = _one_step_back(run, time, incoming, state_gradients, inputs)
        yield SweptStep(time, max(time, start), carried, input_gradients)


def _blocks_back(length: int, rows_per_loss: int) -> list[tuple[int, int, int]]:
    """(start, end, time) of every step of the sweeps back: one sweep carries the losses of steps start ... end - 1.

    The losses are split into blocks so that a sweep fits into memory.
    """
    size = max(1, MAX_ROWS_AT_ONCE // rows_per_loss)
    blocks = [(start, min(start + size, length)) for start in range(0, length, size)]
    return [(start, end, time) for start, end in blocks for time in reversed(range(end))]


def _one_step_back(
    run: StepByStepRun, time: int, output_gradients: Tensor, state_gradients: Tensor, inputs: bool
) -> tuple[Tensor, Tensor | None]:
    """From the gradients of a step's output and next state to those of its state, and of its inputs (or None).

    All gradients are (losses, copies, batch, size).
    """
    losses, copies, batch, _ = state_gradients.shape
    repeats = losses * copies
    state = run.states[time].repeat(repeats, 1).requires_grad_()
    x = run.inputs[time].repeat(repeats, 1).requires_grad_() if inputs else None
    sources = [state] if x is None else [state, x]
    with torch.enable_grad():
        results = run.step(time, state, x, copies=repeats)
    weights = [gradient.reshape(repeats * batch, -1) for gradient in (output_gradients, state_gradients)]
    gradients = [g.reshape(losses, copies, batch, -1) for g in _gradients(results, sources, weights)]
    return gradients[0], gradients[1] if inputs else None


def sweep_ahead(run: StepByStepRun) -> Iterator[SweptStep]:
    """Tangents of the output of each step k with respect to each element of the inputs of steps i <= k: k runs forward.

        tangent(k + 1, i) = dh(k + 1)/dh(k) tangent(k, i)   for i < k, of the state before step k + 1
        tangent(k + 1, k) = dh(k + 1)/dx(k)

    Inputs are taken in blocks of steps, so that the tangents carried at a time fit into memory: for each block, one
    `SweptStep` for each step k from the block's start to the last.
    """
    numbers = run.input_layout.size
    unit = torch.eye(numbers, dtype=torch.float64, device=run.device).unsqueeze(1)
    size = max(1, MAX_ROWS_AT_ONCE // max(numbers * run.batch, 1))  # of a block of inputs that fits into memory
    times = [(start, time) for start in range(0, run.length, size) for time in range(start, run.length)]
    zero = run.states.new_zeros(1, numbers, run.batch, run.state_layout.size)
    carried = zero[:0]
    for start, time in with_progress_bar(times, "tangents go ahead"):
        if time == start:
            carried = zero[:0]
        input_joins = time < start + size
        state = torch.cat([carried, zero]) if input_joins else carried
        x = state.new_zeros(*state.shape[:3], numbers)
        if input_joins:
            x[-1] = unit
        output, carried = _one_step_ahead(run, time, state, x)
        yield SweptStep(time, start, output)


def _one_step_ahead(
    run: StepByStepRun, time: int, state_tangents: Tensor, input_tangents: Tensor
) -> tuple[Tensor, Tensor]:
    """From the tangents of a step's state and inputs to those of its output and next state.

    The gradient of weighted results is linear in the weights, and the gradient of that is the tangent. (torch's forward
    mode has no rule for some operators, and takes seconds to start.)
    """
    repeats = state_tangents.shape[0] * state_tangents.shape[1]
    rows = repeats * run.batch
    h, x = (values[time].repeat(repeats, 1).requires_grad_() for values in (run.states, run.inputs))
    with torch.enable_grad():
        results = run.step(time, h, x, copies=repeats)
        weights = [torch.zeros_like(result, requires_grad=True) for result in results]
        gradients = _gradients(results, [h, x], weights, create_graph=True)
    tangents = _gradients(gradients, weights, [state_tangents.reshape(rows, -1), input_tangents.reshape(rows, -1)])
    output, after = (tangent.reshape(*state_tangents.shape[:3], -1) for tangent in tangents)
    return output, after


def _gradients(
    results: Sequence[Tensor], sources: Sequence[Tensor], weights: Sequence[Tensor], *, create_graph: bool = False
) -> list[Tensor]:
    """The gradients of weighted results, zeros for a source on which nothing depends."""
    pairs = [pair for pair in zip(results, weights, strict=True) if pair[0].requires_grad]
    if not pairs:
        return [torch.zeros_like(source) for source in sources]
    differentiable, their_weights = zip(*pairs, strict=True)
    return list(
        torch.autograd.grad(differentiable, sources, their_weights, create_graph=create_graph, materialize_grads=True)
    )
