"""The rewrite `rank_one`: one product of two vectors per row stands for the state's derivative by all sources.

Unbiased online recurrent optimization (Tallec and Ollivier 2017, arXiv 1702.05043). With s the state, p the sources,
A = ds'/ds, and signs ν drawn anew at every step for every row:

    gradient of p += (do/ds)^T g s~ θ~ + (do/dp)^T g    g the gradient that arrives at the outputs of this step
    s~' = ρ0 A s~ + ρ1 ν
    θ~' = θ~ / ρ0 + w / ρ1                              w = ν^T ds'/dp

The mean of s~ θ~ over the signs is ds/dp: that of ν ν^T is the identity, the ρ cancel, and mixed terms are odd in ν.
ρ0 = sqrt(|θ~| / |A s~|) and ρ1 = sqrt(|w| / |ν|) keep the noise small; any positive numbers that are even in ν would be
as right, so a tiny one is added to each length, and nothing is divided by zero.

Known shortcoming: the noise is as large as the gradient or larger, and grows with the number of parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.rewrite.derivatives import heard, pulled, pushed
from leporello.rewrite.linearize import Linear, Values, flat, key, linearize, total, totals

SIGN, TANGENT = "the signs", "the tangent"  # no leaf or parameter has such a name


def rank_one(linear: Linear) -> Loop:
    """The loop that runs forward over the same inputs and has the sources' gradients, with noise, as totals.

    Its inputs: those of the loop, `grad.o` for the gradient of an output o, the draw `the signs`, uniform, and as
    states `the tangent`, [rows, size], and `trace of p`, [rows, *shape], for every source on which the state depends.
    """
    if not linear.influencing:
        return linearize(linear, "rank one", [], lambda rows, values: _of_one_step(linear, rows, values), keep=[])
    traces = {key(port): trace(port, linear) for port in linear.influencing}
    noisy = any(port.kind == "invariant" for port in linear.influencing)  # an initial state is exact but for its signs
    device = linear.states[0].device
    tangent = Port("state", TANGENT, (linear.size,), linear.dtype, device)
    sign = Port("draw", SIGN, (linear.size,), linear.dtype, device, distribution="uniform")

    def step(rows: Any, values: Values) -> dict[Port, Tensor]:
        found, state, gradients = heard(linear, rows, values)
        before = {one: values[key(port)] for one, port in traces.items()}
        if state is not None:
            weight = (state * values[key(tangent)]).sum(1)
            for port in linear.influencing:
                arrived = through(port, weight, before[key(port)])
                direct = gradients.get(key(port))
                gradients[key(port)] = arrived if direct is None else direct + arrived
        moved = pushed(linear, rows, values, values[key(tangent)])
        shrunk = _ratio(_length(list(before.values())), _length([moved]))
        found[tangent] = moved * shrunk.unsqueeze(1)
        after = {one: value / _wide(shrunk, value) for one, value in before.items()}
        if noisy:
            signs = torch.where(values[key(sign)] < 0.5, -1.0, 1.0).to(linear.dtype)
            own = pulled(linear, values, signs)
            share = _ratio(_length(list(own.values())), _length([signs]))
            found[tangent] = found[tangent] + signs * share.unsqueeze(1)
            after |= {one: after[one] + value / _wide(share, value) for one, value in own.items()}
        return found | {traces[one]: value for one, value in after.items()} | totals(linear, gradients)

    carried = [tangent, *traces.values()]
    return linearize(linear, "rank one", [*carried, *[sign] * noisy], step, keep=carried)


def _of_one_step(linear: Linear, rows: Any, values: Values) -> dict[Port, Tensor]:
    """Where the state depends on no source, every gradient is of one step alone."""
    found, _, gradients = heard(linear, rows, values)
    return found | totals(linear, gradients)


def trace(port: Port, linear: Linear) -> Port:
    """The state that carries a source's part of the product."""
    return Port("state", f"trace of {total(port).name}", port.shape, linear.dtype, port.device)


def through(port: Port, weight: Tensor, trace: Tensor) -> Tensor:
    """What a weight per row [rows] is to a source, by way of its trace [rows, *shape]."""
    per_row = trace * _wide(weight, trace)
    return (per_row if port.rows else per_row.sum(0)).to(port.dtype)


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    """sqrt(one / other), a positive number in every case."""
    small = torch.finfo(one.dtype).tiny ** 0.5
    return ((one + small) / (other + small)).sqrt()


def _length(parts: Sequence[Tensor]) -> Tensor:
    """The Euclidean length of each row's parts together."""
    squares = [flat(part, 1).square().sum(1) for part in parts]
    return functools.reduce(torch.add, squares).sqrt()


def _wide(weight: Tensor, like: Tensor) -> Tensor:
    return weight.reshape(-1, *[1] * (like.dim() - 1))
