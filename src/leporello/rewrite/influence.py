"""The rewrite `influence`: the state's derivative with respect to every source goes along with the state.

Real-time recurrent learning (Williams and Zipser 1989). With s the state, p a source and J = ds/dp:

    gradient of p += (do/ds)^T g J + (do/dp)^T g        g the gradient that arrives at the outputs of this step
    J' = (ds'/ds) J + ds'/dp                            zeros at the beginning; the identity for the initial state

Known shortcomings: for every row J has the size of the state times that of p, and J' costs a product of matrices of
that size. Where J is infinite, 0 times it is NaN, at a reset too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.rewrite.derivatives import heard, jacobians
from leporello.rewrite.linearize import Linear, Values, flat, key, linearize, total, totals


def influence(linear: Linear) -> Loop:
    """The loop that runs forward over the same inputs and has the sources' gradients as totals.

    Its inputs: those of the loop, `grad.o` for the gradient of an output o, and as states `influence of p`,
    [rows, size, *shape], for every source on which the state depends.
    """
    carried = {key(port): carrier(port, linear) for port in linear.influencing}

    def step(rows: Any, values: Values) -> dict[Port, Tensor]:
        found, state, gradients = heard(linear, rows, values)
        if carried:
            of_state, of_sources = jacobians(linear, values)
            for port in linear.influencing:
                before = values[key(carried[key(port)])]
                found[carried[key(port)]] = _after(before, of_state, of_sources.get(key(port)))
                if state is not None:
                    arrived = through(port, state, before)
                    direct = gradients.get(key(port))
                    gradients[key(port)] = arrived if direct is None else direct + arrived
        return found | totals(linear, gradients)

    return linearize(linear, "influence", list(carried.values()), step, keep=list(carried.values()))


def carrier(port: Port, linear: Linear) -> Port:
    """The state that carries a source's influence."""
    shape = (linear.size, *port.shape)
    return Port("state", f"influence of {total(port).name}", shape, linear.dtype, port.device)


def through(port: Port, state: Tensor, influence: Tensor) -> Tensor:
    """What a gradient of the state, [rows, size], is to a source, by way of its influence, [rows, size, *shape]."""
    if port.rows:
        found = (state.unsqueeze(1) @ flat(influence, 2)).view(-1, *port.shape)
    else:
        found = (state.reshape(1, -1) @ flat(influence, 2).flatten(0, 1)).view(port.shape)
    return found.to(port.dtype)


def _after(before: Tensor, of_state: Tensor, of_source: Tensor | None) -> Tensor:
    """J' of J; a step has no derivative of its own with respect to an initial state."""
    flat_before = flat(before, 2)
    if of_source is None:
        return (of_state @ flat_before).view_as(before)
    return torch.baddbmm(flat(of_source, 2), of_state, flat_before).view_as(before)
