"""One step of the backward sweep, operator by operator: whose gradient was the first that is not finite.

Goes over the Loop's own graph: its operators are those the user wrote, with names and lines; those of a differentiated
Loop are not. Knows one step; knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.crossing import clipped
from leporello.loop.graph import arguments
from leporello.loop.value_classes import is_part
from leporello.modules.finite.origin import Origin, kind_of, made_by
from leporello.modules.finite.window import Window, evaluated

Gradients = dict[str, Tensor]  # by name


def in_step(
    window: Window, step: int, arriving: Gradients, leaving: Gradients, limit: float | None, wrong: tuple[str, str]
) -> Origin:
    """Go on from the input whose gradient is wrong, through values whose gradients are, to the operator that began.

    window     the step alone; what is to be differentiated requires it
    arriving   the gradients of its outputs, (1, batch, ...)
    leaving    those of the state behind it
    limit      that a gradient method sets to the latter
    wrong      kind and name of the input
    """
    loop = window.loop
    with torch.enable_grad():
        values = window.nodes()
        pairs = _with_gradients(window, values, arriving, leaving, limit)
    known = [node for node, value in values.items() if isinstance(value, Tensor) and value.requires_grad]
    heard, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(heard, [values[node] for node in known], given, allow_unused=True)
    gradients = {node: gradient for node, gradient in zip(known, found, strict=True) if gradient is not None}
    ports = zip(loop.inputs, loop.placeholders, strict=True)
    node = next(node for port, node in ports if (port.kind, port.name) == wrong)
    rank = {node: index for index, node in enumerate(loop.graph.nodes)}
    while True:
        onwards = [user for user in _readers(node) if user in gradients and kind_of(gradients[user]) is not None]
        if not onwards:
            break
        node = max(onwards, key=rank.__getitem__)
    kind = (kind_of(gradients[node]) if node in gradients else None) or "nan"
    row = _row(window, node, gradients[node]) if node in gradients else None
    blamed = next((user for user in node.users if _makes_it(user, node, values, gradients)), None)
    if blamed is None:  # each of them is finite, their sum is not; or the gradient method's weight made it so
        return Origin("backward", kind, "the sum over uses", node.meta.get("label"), step, row)
    return made_by(blamed, "backward", kind, step, row)


def _with_gradients(
    window: Window, values: Mapping[fx.Node, Any], arriving: Gradients, leaving: Gradients, limit: float | None
) -> list[tuple[Tensor, Tensor]]:
    """The results of a step, each with the gradient that arrives at it."""
    results = list(zip(window.loop.outputs, window.loop.results, strict=True))
    pairs = [(values[node], arriving.get(port.name)) for port, node in results if port.kind == "sequence"]
    pairs = [(value, None if gradient is None else gradient[0]) for value, gradient in pairs]
    states = [(values[node], leaving.get(port.name)) for port, node in results if port.kind == "state"]
    if limit is not None:
        past = None if window.past is None else window.past[0]
        changed = clipped([value for value, _ in states], limit, past, None)
        states = [(value, gradient) for value, (_, gradient) in zip(changed, states, strict=True)]
    return [(value, given) for value, given in (*pairs, *states) if given is not None and value.requires_grad]


def _readers(node: fx.Node) -> list[fx.Node]:
    """The values made of a value; of an operator with several results, each of them."""
    found: list[fx.Node] = []
    for user in node.users:
        parts = [part for part in user.users if is_part(part)]
        found += parts if parts and not isinstance(user.meta.get("val"), Tensor) else [user]
    return found


def _makes_it(user: fx.Node, node: fx.Node, values: Mapping[fx.Node, Any], gradients: Mapping[fx.Node, Tensor]) -> bool:
    """Whether the operator alone makes a gradient for the value that is not finite."""
    if user.op != "call_function":
        return False
    read = {source: _loose(values[source]) for source in user.all_input_nodes}
    leaf = read[node] = read[node].requires_grad_()
    with torch.enable_grad():
        made = evaluated(user, read)
    if isinstance(made, Tensor):
        pairs = [(made, gradients.get(user))]
    else:
        pairs = [(made[arguments(part)[1]], gradients.get(part)) for part in user.users if is_part(part)]
    pairs = [(value, gradient) for value, gradient in pairs if gradient is not None and value.requires_grad]
    if not pairs:
        return False
    heard, arriving = zip(*pairs, strict=True)
    (found,) = torch.autograd.grad(heard, [leaf], arriving, allow_unused=True)
    return found is not None and kind_of(found) is not None


def _loose(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _row(window: Window, node: fx.Node, gradient: Tensor) -> int | None:
    axis = window.row_axis(node, gradient)
    if axis is None:
        return None
    rows = gradient.isfinite().logical_not().movedim(axis, 0).reshape(window.batch, -1).any(1).nonzero()
    return int(rows[0]) if len(rows) else None
