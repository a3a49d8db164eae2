"""Derivatives of one step of a `Linear`, as functions that are traced: torch's own, of the Loop's own graph.

What the outputs' gradients are to the state needs no row apart from the others: rows do not meet. What a row's next
state owes to a parameter that all rows share does: there torch's vmap goes over the rows. Knows one step; knows nothing
of what is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.graph import copied, stop
from leporello.loop.graph_cleanup import WithoutAssertions
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.rewrite.linearize import Key, Linear, Values, arriving, flat, key


def stepped(linear: Linear, rows: Any, values: Values) -> dict[Port, Tensor]:
    """The loop's outputs."""
    with WithoutAssertions():
        given = fx.GraphModule({}, linear.loop.graph).forward(rows, *_inputs(linear, values))
    return dict(zip(linear.loop.outputs, given, strict=True))


def heard(linear: Linear, rows: Any, values: Values) -> tuple[dict[Port, Tensor], Tensor | None, dict[Key, Tensor]]:
    """The next state, all leaves of it; and what the gradients of the outputs are, by way of this step alone.

    To the state: [rows, size], None where no output depends on it. To the invariants among the sources: by their keys,
    those left out on which no output depends.
    """
    own = [*linear.states, *(port for port in linear.sources if port.kind == "invariant")]
    leaves = {key(port): values[key(port)].detach().requires_grad_() for port in own}
    with torch.enable_grad():
        given = stepped(linear, rows, {**values, **leaves})
    after = {port: value.detach() for port, value in given.items() if port.kind == "state"}
    said = {port: value for port, value in given.items() if port.kind != "state" and value.requires_grad}
    if not said:
        return after, None, {}
    weights = [values[key(arriving(port))] for port in said]
    with WithoutAssertions():
        made = torch.autograd.grad(list(said.values()), list(leaves.values()), weights, allow_unused=True)
    found = {one: gradient for one, gradient in zip(leaves, made, strict=True) if gradient is not None}
    direct = {one: gradient for one, gradient in found.items() if one[0] == "invariant"}
    if not any(key(port) in found for port in linear.states):
        return after, None, direct
    return after, linear.joined([_or_zeros(found.get(key(port)), values[key(port)]) for port in linear.states]), direct


def jacobians(linear: Linear, values: Values) -> tuple[Tensor, dict[Key, Tensor]]:
    """Of the next state: with respect to the state, [rows, size, size], and to each influencing invariant,
    [rows, size, *shape]."""
    basis = _basis(linear)

    def of_row(own: list[Tensor], others: list[Tensor]) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.vmap(_back(linear, own, others))(basis)
        return found

    found = _by_rows(linear, of_row, values)
    blocks = [flat(block, 2).to(linear.dtype) for block in found[: len(linear.states)]]
    return torch.cat(blocks, 2), _of_invariants(linear, found)


def pulled(linear: Linear, values: Values, weights: Tensor) -> dict[Key, Tensor]:
    """weights^T d(next state)/d(source), [rows, *shape], for each influencing invariant; weights are [rows, size]."""

    def of_row(own: list[Tensor], others: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = _back(linear, own, others)(weights)
        return found

    return _of_invariants(linear, _by_rows(linear, of_row, values, linear.apart(weights)))


def pushed(linear: Linear, rows: Any, values: Values, tangent: Tensor) -> Tensor:
    """d(next state)/d(state) tangent, [rows, size]: the product with a row vector, differentiated by that vector."""
    leaves = {key(port): values[key(port)].detach().requires_grad_() for port in linear.states}
    found: dict[Key, Tensor | None] = {}
    with torch.enable_grad(), WithoutAssertions():
        after = stepped(linear, rows, {**values, **leaves})
        moved = {key(port): v for port, v in after.items() if port.kind == "state" and v.requires_grad}
        weights = {one: torch.zeros_like(value).requires_grad_() for one, value in moved.items()}
        if moved:
            to, of, by = (list(side.values()) for side in (moved, leaves, weights))
            products = torch.autograd.grad(to, of, by, allow_unused=True, create_graph=True)
            parts = zip(products, linear.apart(tangent), strict=True)
            pairs = [(product, part) for product, part in parts if product is not None]
            made = torch.autograd.grad([one for one, _ in pairs], by, [part for _, part in pairs], allow_unused=True)
            found = dict(zip(weights, made, strict=True))
    return linear.joined([_or_zeros(found.get(one), value) for one, value in leaves.items()])


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like).detach() if gradient is None else gradient


def _basis(linear: Linear) -> tuple[Tensor, ...]:
    """The unit vectors of the state, a leaf each: [size, *shape]."""
    whole = torch.eye(linear.size, dtype=linear.dtype, device=linear.states[0].device)
    return linear.apart(whole)


def _invariants(linear: Linear) -> list[Port]:
    return [port for port in linear.influencing if port.kind == "invariant"]


def _of_invariants(linear: Linear, found: Sequence[Tensor]) -> dict[Key, Tensor]:
    """What stands behind the state's leaves."""
    own = zip(_invariants(linear), found[len(linear.states) :], strict=True)
    return {key(port): value.to(linear.dtype) for port, value in own}


# ---- row by row


def _by_rows(linear: Linear, function: Callable[..., Any], values: Values, given: Sequence[Tensor] = ()) -> Any:
    """function(what is differentiated, all inputs, what is given), all of one row, for every row."""
    own = [*linear.states, *_invariants(linear)]
    axes = [[0 if port.rows else None for port in ports] for ports in (own, linear.loop.inputs)]
    mapped = torch.func.vmap(function, in_dims=(*axes, *[0] * len(given)))
    with WithoutAssertions():
        return mapped([values[key(port)] for port in own], _inputs(linear, values), *given)


def _back(linear: Linear, own: Sequence[Tensor], others: Sequence[Tensor]) -> Callable[..., Any]:
    """From weights of one row's next state, a leaf each, to what they are to the state and to the invariants."""
    ports, row = [*linear.states, *_invariants(linear)], row_of(linear.loop)

    def following(*own: Tensor) -> tuple[Tensor, ...]:
        there = dict(zip(map(key, ports), own, strict=True))
        inputs = zip(linear.loop.inputs, others, strict=True)
        given = [(port, there.get(key(port), other)) for port, other in inputs]
        made = row(1, *(value.unsqueeze(0) if port.rows else value for port, value in given))
        after = {key(port): value for port, value in zip(linear.loop.outputs, made, strict=True)}
        return tuple(after[key(port)].squeeze(0) for port in linear.states)

    back: Callable[..., Any] = torch.func.vjp(following, *own)[1]
    return back


def _inputs(linear: Linear, values: Values) -> list[Tensor]:
    return [values[key(port)] for port in linear.loop.inputs]


# ---- a step as a function of one row, by operators for which torch's vmap has a rule: instead of those it maps wrongly

aten = torch.ops.aten


def _slice_scatter(x: Tensor, part: Tensor, axis: int, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    end = None if end is None else min(end, x.shape[axis])  # an end beyond all sizes overflows under vmap
    return aten.slice_scatter.default(x, part, axis, start, end, step)


def _unfold(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    axis = axis % x.dim()
    starts = range(0, x.shape[axis] - size + 1, step)
    return torch.stack([x.narrow(axis, start, size).movedim(axis, -1) for start in starts], axis)


SPELT: dict[Any, Callable[..., Any]] = {
    stop: torch.Tensor.detach,
    aten.fill.Tensor: lambda x, value: value.to(x.dtype).expand_as(x),
    aten.slice_scatter.default: _slice_scatter,
    aten.unfold.default: _unfold,
    aten._prelu_kernel.default: lambda x, weight: torch.where(x > 0, x, weight * x),
}


def row_of(loop: Loop) -> Callable[..., Any]:
    """The step as a function of the number of rows and its inputs."""
    graph, _ = copied(loop.graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = SPELT.get(node.target, node.target)
    return fx.GraphModule({}, graph).forward
