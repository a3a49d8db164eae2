"""Derivatives of one step of a `Linear`, as functions that can be traced: torch's own derivatives of the Loop's graph.

The vector-Jacobian product of the outputs treats all rows together, because there is no interaction across the batch.
The derivative of each row's next state with respect to a parameter that all rows share needs the rows one by one: there
torch's vmap maps over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.port import Port, PortKey, PortValues
from leporello.loop.tracing.graph_cleanup import WithoutAssertions
from leporello.rewrite.forward_in_time.linearize import Linear, flatten_from, gradient_port
from leporello.rewrite.trace_every_batch import vmappable_step


def step_outputs(linear: Linear, rows: Any, values: PortValues) -> dict[Port, Tensor]:
    """The outputs of one step of the Loop, next states among them, from the values of its inputs."""
    with WithoutAssertions():
        outputs = fx.GraphModule({}, linear.loop.graph).forward(rows, *_inputs(linear, values))
    return dict(zip(linear.loop.outputs, outputs, strict=True))


def step_with_gradients(
    linear: Linear, rows: Any, values: PortValues
) -> tuple[dict[Port, Tensor], Tensor | None, dict[PortKey, Tensor]]:
    """The leaves of the next state by port, and the vector-Jacobian product of the outputs with their incoming
    gradients, through this step alone.

    The product comes in two parts. With respect to the state: [rows, size], None where no output depends on it. With
    respect to the invariants among the sources: by their keys, without those on which no output depends.
    """
    differentiated = [*linear.states, *(port for port in linear.sources if port.kind == "invariant")]
    leaves = {port.key: values[port.key].detach().requires_grad_() for port in differentiated}
    with torch.enable_grad():
        results = step_outputs(linear, rows, {**values, **leaves})
    after = {port: value.detach() for port, value in results.items() if port.kind == "state"}
    outputs = {port: value for port, value in results.items() if port.kind != "state" and value.requires_grad}
    if not outputs:
        return after, None, {}
    incoming = [values[gradient_port(port).key] for port in outputs]
    with WithoutAssertions():
        products = torch.autograd.grad(list(outputs.values()), list(leaves.values()), incoming, allow_unused=True)
    gradients = {key: gradient for key, gradient in zip(leaves, products, strict=True) if gradient is not None}
    direct = {key: gradient for key, gradient in gradients.items() if key[0] == "invariant"}
    if not any(port.key in gradients for port in linear.states):
        return after, None, direct
    of_leaves = [_or_zeros(gradients.get(port.key), values[port.key]) for port in linear.states]
    return after, linear.to_vector(of_leaves), direct


def step_jacobians(linear: Linear, values: PortValues) -> tuple[Tensor, dict[PortKey, Tensor]]:
    """The Jacobians of the next state: with respect to the state, [rows, size, size], and, by key, to each influencing
    invariant, [rows, size, *shape]."""
    basis = _basis(linear)

    def of_row(differentiated: list[Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
        rows_of_jacobian: tuple[Tensor, ...] = torch.func.vmap(_row_vjp(linear, differentiated, inputs))(basis)
        return rows_of_jacobian

    blocks = _map_rows(linear, of_row, values)
    of_state = [flatten_from(block, 2).to(linear.dtype) for block in blocks[: len(linear.states)]]
    return torch.cat(of_state, 2), _of_invariants(linear, blocks)


def next_state_vjp(linear: Linear, values: PortValues, weights: Tensor) -> dict[PortKey, Tensor]:
    """weights^T d(next state)/d(source), [rows, *shape], by key, for each influencing invariant.

    weights   [rows, size]
    """

    def of_row(differentiated: list[Tensor], inputs: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        product: tuple[Tensor, ...] = _row_vjp(linear, differentiated, inputs)(weights)
        return product

    return _of_invariants(linear, _map_rows(linear, of_row, values, linear.to_leaves(weights)))


def next_state_jvp(linear: Linear, rows: Any, values: PortValues, tangent: Tensor) -> Tensor:
    """d(next state)/d(state) tangent, [rows, size], like the tangent.

    Computed as the derivative of the vector-Jacobian product with respect to its vector, in which it is linear.
    """
    leaves = {port.key: values[port.key].detach().requires_grad_() for port in linear.states}
    by_leaf: dict[PortKey, Tensor | None] = {}
    with torch.enable_grad(), WithoutAssertions():
        outputs = step_outputs(linear, rows, {**values, **leaves})
        after = {port.key: v for port, v in outputs.items() if port.kind == "state" and v.requires_grad}
        weights = {key: torch.zeros_like(value).requires_grad_() for key, value in after.items()}
        if after:
            to, of, by = (list(side.values()) for side in (after, leaves, weights))
            products = torch.autograd.grad(to, of, by, allow_unused=True, create_graph=True)
            tangents = zip(products, linear.to_leaves(tangent), strict=True)
            pairs = [(product, part) for product, part in tangents if product is not None]
            moved = torch.autograd.grad(
                [product for product, _ in pairs], by, [part for _, part in pairs], allow_unused=True
            )
            by_leaf = dict(zip(weights, moved, strict=True))
    return linear.to_vector([_or_zeros(by_leaf.get(key), value) for key, value in leaves.items()])


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like).detach() if gradient is None else gradient


def _basis(linear: Linear) -> tuple[Tensor, ...]:
    """The unit vectors of the state, a leaf each: [size, *shape]."""
    identity = torch.eye(linear.size, dtype=linear.dtype, device=linear.states[0].device)
    return linear.to_leaves(identity)


def _invariants(linear: Linear) -> list[Port]:
    return [port for port in linear.influencing if port.kind == "invariant"]


def _of_invariants(linear: Linear, derivatives: Sequence[Tensor]) -> dict[PortKey, Tensor]:
    """Of derivatives with respect to the state's leaves and then the invariants: those of the invariants, by key."""
    pairs = zip(_invariants(linear), derivatives[len(linear.states) :], strict=True)
    return {port.key: value.to(linear.dtype) for port, value in pairs}


# ---- row by row


def _map_rows(linear: Linear, function: Callable[..., Any], values: PortValues, extra: Sequence[Tensor] = ()) -> Any:
    """function(differentiated inputs, all inputs, *extra) of one row, mapped over the rows by vmap."""
    differentiated = [*linear.states, *_invariants(linear)]
    axes = [[0 if port.rows else None for port in ports] for ports in (differentiated, linear.loop.inputs)]
    mapped = torch.func.vmap(function, in_dims=(*axes, *[0] * len(extra)))
    with WithoutAssertions():
        return mapped([values[port.key] for port in differentiated], _inputs(linear, values), *extra)


def _row_vjp(linear: Linear, differentiated: Sequence[Tensor], inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A function, the vector-Jacobian product of one row's next state: from a tuple of weights, one per leaf, to the
    gradients of the state's leaves and then of the influencing invariants.

    differentiated   the row's values of these leaves and invariants
    inputs           the row's values of all inputs of the Loop
    """
    ports, step = [*linear.states, *_invariants(linear)], vmappable_step(linear.loop)

    def next_state(*differentiated: Tensor) -> tuple[Tensor, ...]:
        replaced = dict(zip([port.key for port in ports], differentiated, strict=True))
        pairs = zip(linear.loop.inputs, inputs, strict=True)
        arguments = [(port, replaced.get(port.key, value)) for port, value in pairs]
        outputs = step(1, *(value.unsqueeze(0) if port.rows else value for port, value in arguments))
        after = {port.key: value for port, value in zip(linear.loop.outputs, outputs, strict=True)}
        return tuple(after[port.key].squeeze(0) for port in linear.states)

    vjp: Callable[..., Any] = torch.func.vjp(next_state, *differentiated)[1]
    return vjp


def _inputs(linear: Linear, values: PortValues) -> list[Tensor]:
    return [values[port.key] for port in linear.loop.inputs]
