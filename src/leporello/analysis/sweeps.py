"""What is carried through the steps of a call: gradients back, tangents ahead, all of them side by side as rows.

A sweep takes each step once, on as many copies of the batch as there are losses (or inputs) to follow. The slow twin,
one call of autograd for each of them, is in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.analysis.progress_bar import watched
from leporello.analysis.step_by_step import MOST_ROWS, Steps


@dataclass(frozen=True)
class Carried:
    """What the sweep holds at step k.

    first    the step of the first loss (of the first input) that is followed
    values   (losses, copies, batch, numbers): with respect to the state that step k finds
    inputs   the same with respect to the inputs of step k, where asked for
    """

    k: int
    first: int
    values: Tensor
    inputs: Tensor | None = None


def back(steps: Steps, arriving: Tensor, *, inputs: bool = False) -> Iterator[Carried]:
    """Gradients of what happens at each step, with respect to the state that each step found: k runs backwards.

        gradient(t, k) = gradient(t, k + 1) dh(k + 1)/dh(k)   for t > k;   for t = k it is arriving(t) do(t)/dh(t)

    arriving   (length, copies, batch, outputs): of the outputs of each step, so many gradients each
    inputs     whether the inputs' gradients are wanted too
    """
    copies = arriving.shape[1]
    nothing = steps.states.new_zeros(1, copies, steps.batch, steps.state_layout.size)
    carried = nothing[:0]
    for start, end, time in watched(_stretches(steps.length, copies * steps.batch), "gradients go back"):
        if time == end - 1:
            carried = nothing[:0]
        joins = time >= start
        later = torch.cat([nothing, carried]) if joins else carried
        heard = arriving.new_zeros(len(later), *arriving.shape[1:])
        if joins:
            heard[0] = arriving[time]
        carried, found = _one_step_back(steps, time, heard, later, inputs)
        yield Carried(time, max(time, start), carried, found)


def _stretches(length: int, rows: int) -> list[tuple[int, int, int]]:
    """The steps of the sweeps back, each with the stretch of losses it carries: no more of them than memory bears.

    rows   that each loss takes
    """
    block = max(1, MOST_ROWS // rows)
    stretches = [(start, min(start + block, length)) for start in range(0, length, block)]
    return [(start, end, time) for start, end in stretches for time in reversed(range(end))]


def _one_step_back(steps: Steps, time: int, heard: Tensor, later: Tensor, inputs: bool) -> tuple[Tensor, Tensor | None]:
    """From the gradients of a step's output and next state to those of its state, and of its inputs."""
    losses, copies, batch, _ = later.shape
    many = losses * copies
    state = steps.states[time].repeat(many, 1).requires_grad_()
    x = steps.inputs[time].repeat(many, 1).requires_grad_() if inputs else None
    sources = [state] if x is None else [state, x]
    with torch.enable_grad():
        results = steps.step(time, state, x, copies=many)
    weights = [gradient.reshape(many * batch, -1) for gradient in (heard, later)]
    found = _gradients(results, sources, weights)
    own = [gradient.reshape(losses, copies, batch, -1) for gradient in found]
    return own[0], own[1] if inputs else None


def ahead(steps: Steps) -> Iterator[Carried]:
    """Tangents of the output of each step with respect to each input number of each step up to it: k runs forward.

        tangent(t + 1, k) = dh(t + 1)/dh(t) tangent(t, k)   for k < t;   for k = t it is dh(t + 1)/dx(t)

    Yields the outputs' tangents at step k: `values` (inputs from `first` on, numbers of an input, batch, outputs).
    """
    numbers = steps.input_layout.size
    unit = torch.eye(numbers, dtype=torch.float64, device=steps.device).unsqueeze(1)
    block = max(1, MOST_ROWS // max(numbers * steps.batch, 1))
    times = [(start, time) for start in range(0, steps.length, block) for time in range(start, steps.length)]
    nothing = steps.states.new_zeros(1, numbers, steps.batch, steps.state_layout.size)
    carried = nothing[:0]
    for start, time in watched(times, "tangents go ahead"):
        if time == start:
            carried = nothing[:0]
        joins = time < start + block
        state = torch.cat([carried, nothing]) if joins else carried
        x = state.new_zeros(*state.shape[:3], numbers)
        if joins:
            x[-1] = unit
        output, carried = _one_step_ahead(steps, time, state, x)
        yield Carried(time, start, output)


def _one_step_ahead(steps: Steps, time: int, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """From the tangents of a step's state and inputs to those of its output and next state.

    The gradient of a weighting of the results is linear in the weights, and its own gradient is the tangent. (torch's
    forward mode has no rule for some operators, and takes seconds to begin.)
    """
    many = state.shape[0] * state.shape[1]
    rows = many * steps.batch
    h, x_there = (value[time].repeat(many, 1).requires_grad_() for value in (steps.states, steps.inputs))
    with torch.enable_grad():
        results = steps.step(time, h, x_there, copies=many)
        weights = [torch.zeros_like(result, requires_grad=True) for result in results]
        slopes = _gradients(results, [h, x_there], weights, again=True)
    tangents = _gradients(slopes, weights, [state.reshape(rows, -1), x.reshape(rows, -1)])
    output, after = (tangent.reshape(*state.shape[:3], -1) for tangent in tangents)
    return output, after


def _gradients(
    results: Sequence[Tensor], sources: Sequence[Tensor], weights: Sequence[Tensor], *, again: bool = False
) -> list[Tensor]:
    """The gradients of weighted results, zeros for a source on which nothing depends.

    again   whether they are to be differentiated in turn
    """
    pairs = [pair for pair in zip(results, weights, strict=True) if pair[0].requires_grad]
    if not pairs:
        return [torch.zeros_like(source) for source in sources]
    made, given = zip(*pairs, strict=True)
    return list(torch.autograd.grad(made, sources, given, create_graph=again, materialize_grads=True))
