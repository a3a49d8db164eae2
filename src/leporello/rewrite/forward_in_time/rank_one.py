"""The rewrite `rank_one`: the product of two random vectors per row estimates the state's derivative by all sources.

Unbiased online recurrent optimization (Tallec and Ollivier 2017, arXiv 1702.05043). With s the state, p the sources,
A = ds'/ds, and signs ν drawn anew at every step for every row:

    gradient of p += (do/ds)^T g s~ θ~ + (do/dp)^T g    g the incoming gradient of this step's outputs
    s~' = ρ0 A s~ + ρ1 ν
    θ~' = θ~ / ρ0 + w / ρ1                              w = ν^T ds'/dp

The mean of s~ θ~ over the signs is ds/dp: that of ν ν^T is the identity, the ρ cancel, and mixed terms are odd in ν.
ρ0 = sqrt(|θ~| / |A s~|) and ρ1 = sqrt(|w| / |ν|) keep the noise small. Any positive numbers that are even in ν keep the
estimate unbiased, so a tiny number is added to each norm, which avoids divisions by zero.

Known shortcoming: the noise is as large as the gradient or larger, and grows with the number of parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.loop.loop import Loop
from leporello.loop.port import Port, PortValues
from leporello.rewrite.forward_in_time.derivatives import next_state_jvp, next_state_vjp, step_with_gradients
from leporello.rewrite.forward_in_time.linearize import Linear, flatten_from, linearize, total_outputs, total_port

SIGN, TANGENT = "the signs", "the tangent"  # no leaf or parameter has such a name


def rank_one(linear: Linear) -> Loop:
    """A Loop that runs forward over the same inputs and has the sources' gradients, with noise, as totals.

    Its inputs: those of the Loop, `grad.o` for the gradient of an output o, the draw `the signs`, uniform, and as
    states `the tangent`, [rows, size], and `trace of p`, [rows, *shape], for every source on which the state depends.
    No signs are drawn where the state depends on no invariant among them, and no state is added where on no source.
    """
    if not linear.influencing:
        return linearize(linear, "rank one", [], lambda rows, values: _single_step(linear, rows, values), keep=[])
    traces = {port.key: trace_port(port, linear) for port in linear.influencing}
    noisy = any(port.kind == "invariant" for port in linear.influencing)  # an initial state is exact but for its signs
    device = linear.states[0].device
    tangent = Port("state", TANGENT, (linear.size,), linear.dtype, device)
    sign = Port("draw", SIGN, (linear.size,), linear.dtype, device, distribution="uniform")

    def step(rows: Any, values: PortValues) -> dict[Port, Tensor]:
        outputs, state_gradient, gradients = step_with_gradients(linear, rows, values)
        before = {source: values[port.key] for source, port in traces.items()}
        if state_gradient is not None:
            weight = (state_gradient * values[tangent.key]).sum(1)
            for port in linear.influencing:
                through_state = source_gradient(port, weight, before[port.key])
                direct = gradients.get(port.key)
                gradients[port.key] = through_state if direct is None else direct + through_state
        moved = next_state_jvp(linear, rows, values, values[tangent.key])  # A s~
        rho_0 = _root_of_ratio(_norm(list(before.values())), _norm([moved]))
        outputs[tangent] = moved * rho_0.unsqueeze(1)
        after = {source: trace / _per_row(rho_0, trace) for source, trace in before.items()}
        if noisy:
            signs = torch.where(values[sign.key] < 0.5, -1.0, 1.0).to(linear.dtype)
            products = next_state_vjp(linear, values, signs)  # w
            rho_1 = _root_of_ratio(_norm(list(products.values())), _norm([signs]))
            outputs[tangent] = outputs[tangent] + signs * rho_1.unsqueeze(1)
            after |= {source: after[source] + value / _per_row(rho_1, value) for source, value in products.items()}
        return outputs | {traces[source]: trace for source, trace in after.items()} | total_outputs(linear, gradients)

    carried = [tangent, *traces.values()]
    return linearize(linear, "rank one", [*carried, *[sign] * noisy], step, keep=carried)


def _single_step(linear: Linear, rows: Any, values: PortValues) -> dict[Port, Tensor]:
    """The step where the state depends on no source: every gradient is that of one step alone."""
    outputs, _, gradients = step_with_gradients(linear, rows, values)
    return outputs | total_outputs(linear, gradients)


def trace_port(port: Port, linear: Linear) -> Port:
    """The state that holds a source's part of the product, θ~."""
    return Port("state", f"trace of {total_port(port).name}", port.shape, linear.dtype, port.device)


def source_gradient(port: Port, weight: Tensor, trace: Tensor) -> Tensor:
    """A source's gradient: its trace, [rows, *shape], times (state gradient)^T s~ of each row, [rows]."""
    per_row = trace * _per_row(weight, trace)
    return (per_row if port.rows else per_row.sum(0)).to(port.dtype)


def _root_of_ratio(above: Tensor, below: Tensor) -> Tensor:
    """sqrt(above / below) of norms, positive even where one of them is 0."""
    small = torch.finfo(above.dtype).tiny ** 0.5
    return ((above + small) / (below + small)).sqrt()


def _norm(parts: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each row, over all parts together."""
    squares = [flatten_from(part, 1).square().sum(1) for part in parts]
    return functools.reduce(torch.add, squares).sqrt()


def _per_row(weight: Tensor, like: Tensor) -> Tensor:
    """A weight per row, [rows], shaped to be broadcast over a value [rows, ...]."""
    return weight.reshape(-1, *[1] * (like.dim() - 1))
