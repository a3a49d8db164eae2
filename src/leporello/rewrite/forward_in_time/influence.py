"""The rewrite `influence`: the state's derivative with respect to every source is carried forward with the state.

Real-time recurrent learning (Williams and Zipser 1989). With s the state, p a source and J = ds/dp:

    gradient of p += (do/ds)^T g J + (do/dp)^T g        g the incoming gradient of this step's outputs
    J' = (ds'/ds) J + ds'/dp                            zeros at the beginning; the identity for the initial state

Known shortcomings: for every row J has the size of the state times that of p, and J' costs a product of matrices of
that size. Where J is infinite, 0 times it is NaN, at a reset too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leporello.loop.loop import Loop
from leporello.loop.port import Port, PortValues
from leporello.rewrite.forward_in_time.derivatives import step_jacobians, step_with_gradients
from leporello.rewrite.forward_in_time.linearize import Linear, flatten_from, linearize, total_outputs, total_port


def influence(linear: Linear) -> Loop:
    """A Loop that runs forward over the same inputs and has the sources' gradients as totals.

    Its inputs: those of the Loop, `grad.o` for the gradient of an output o, and as states `influence of p`,
    [rows, size, *shape], for every source on which the state depends.
    """
    carried = {port.key: influence_port(port, linear) for port in linear.influencing}

    def step(rows: Any, values: PortValues) -> dict[Port, Tensor]:
        outputs, state_gradient, gradients = step_with_gradients(linear, rows, values)
        if carried:
            of_state, of_sources = step_jacobians(linear, values)
            for port in linear.influencing:
                before = values[carried[port.key].key]
                outputs[carried[port.key]] = _next_influence(before, of_state, of_sources.get(port.key))
                if state_gradient is not None:
                    through_state = source_gradient(port, state_gradient, before)
                    direct = gradients.get(port.key)
                    gradients[port.key] = through_state if direct is None else direct + through_state
        return outputs | total_outputs(linear, gradients)

    return linearize(linear, "influence", list(carried.values()), step, keep=list(carried.values()))


def influence_port(port: Port, linear: Linear) -> Port:
    """The state that holds a source's influence J."""
    shape = (linear.size, *port.shape)
    return Port("state", f"influence of {total_port(port).name}", shape, linear.dtype, port.device)


def source_gradient(port: Port, state_gradient: Tensor, influence: Tensor) -> Tensor:
    """A source's gradient: the state's gradient, [rows, size], times the source's influence, [rows, size, *shape]."""
    if port.rows:
        gradient = (state_gradient.unsqueeze(1) @ flatten_from(influence, 2)).view(-1, *port.shape)
    else:
        gradient = (state_gradient.reshape(1, -1) @ flatten_from(influence, 2).flatten(0, 1)).view(port.shape)
    return gradient.to(port.dtype)


def _next_influence(before: Tensor, of_state: Tensor, of_source: Tensor | None) -> Tensor:
    """J' from J and the Jacobians of the step; `of_source` is None for an initial state, which no step reads itself."""
    flat_before = flatten_from(before, 2)
    if of_source is None:
        return (of_state @ flat_before).view_as(before)
    return torch.baddbmm(flatten_from(of_source, 2), of_state, flat_before).view_as(before)
