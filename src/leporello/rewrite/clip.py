"""The rewrite `clip`: a backward Loop in which the gradient of a row's state has a largest norm.

It is clipped as it arrives at a step. The norm is over all leaves of the state; where it exceeds the limit, all leaves
are scaled by the same factor. Past a row's end nothing is clipped: there the gradient of the final state is only
carried to the row's end. For a leaf that is a mere shift, that gradient comes in as an input of its own (see `mask`),
and is clipped with the others.
"""

from __future__ import annotations

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

aten = torch.ops.aten


def clip(loop: Loop, limit: float) -> Loop:
    """Clip the state's gradient before a step reads it, and add the total `call.clipped`: how often that happened.

    limit   the largest norm; a Loop without states is returned as it is
    """
    draft = Draft(loop)
    states = [(port, node) for port, node in draft.inputs if port.kind == "state"]
    if not states:
        return loop
    past = next((node for port, node in draft.inputs if port.reads_forward(Role.PAST)), None)
    users = {node: list(node.users) for _, node in draft.inputs}
    dtype = max((port.dtype.to_real() for port, _ in states), key=lambda real: torch.finfo(real).bits)
    with draft.after_inputs():
        arriving = {port.name: _arriving_gradient(draft, port.name, node, users) for port, node in states}
        square = _squared_norm(draft, list(arriving.values()), dtype)
        exceeds = draft.call(aten.gt.Scalar, square, limit * limit)
        if past is not None:
            exceeds = draft.call(aten.logical_and.default, exceeds, draft.call(aten.logical_not.default, past))
        largest = draft.call(aten.clamp_min.default, square, limit * limit)
        factor = draft.call(aten.mul.Tensor, draft.call(aten.rsqrt.default, largest), limit)
        for port, node in states:
            scale = factor
            if port.dtype.to_real() != dtype:
                scale = draft.call(aten._to_copy.default, factor, dtype=port.dtype.to_real())
            gradient = arriving[port.name]
            scaled = draft.call(aten.mul.Tensor, gradient, draft.spread(scale, node))
            clipped = draft.call(aten.where.self, draft.spread(exceeds, node), scaled, gradient)
            for user in users[node]:
                user.replace_input_with(node, clipped)
            draft.outputs = [(out, clipped if result is node else result) for out, result in draft.outputs]
        count = draft.call(aten.sum.dim_IntList, draft.call(aten._to_copy.default, exceeds, dtype=dtype), [0])
    draft.outputs.append(
        (Port("total", "call.clipped", (), dtype, states[0][0].device, rows=False, role=Role.CLIP_COUNT), count)
    )
    return draft.close()


def _arriving_gradient(draft: Draft, name: str, node: fx.Node, users: dict[fx.Node, list[fx.Node]]) -> fx.Node:
    """The gradient of one leaf as it arrives at a step; for a shift, plus that of the final state at the row's end.

    The step then reads zeros in the place of the latter, which would count twice.

    users   for each input of the draft, what read it before anything was added
    """
    final = next((node for port, node in draft.inputs if _is_gradient_of_final(port, name)), None)
    elsewhere = next((node for port, node in draft.inputs if port.reads_forward(Role.ELSEWHERE)), None)
    if final is None or elsewhere is None:
        return node
    zeros = draft.call(aten.zeros_like.default, final)
    for user in users[final]:
        user.replace_input_with(final, zeros)
    at_end = draft.call(aten.masked_fill.Scalar, final, draft.spread(elsewhere, node), 0)
    return draft.call(aten.add.Tensor, node, at_end)


def _is_gradient_of_final(port: Port, state: str) -> bool:
    """Whether a port is the incoming gradient of a state's value at the row's end."""
    final = port.of
    if port.role is not Role.GRADIENT or final is None or final.role is not Role.FINAL_STATE:
        return False
    return final.of is not None and final.of.name == state


def _squared_norm(draft: Draft, leaves: list[fx.Node], dtype: torch.dtype) -> fx.Node:
    """The square of the norm over all leaves, one number per row."""
    total = None
    for node in leaves:
        value = node.meta["val"]
        if value.dtype.is_complex:
            node = draft.call(aten.view_as_real.default, node)
        elif value.dtype != dtype:
            node = draft.call(aten._to_copy.default, node, dtype=dtype)
        square = draft.call(aten.mul.Tensor, node, node)
        axes = list(range(1, node.meta["val"].dim()))
        square = draft.call(aten.sum.dim_IntList, square, axes) if axes else square
        total = square if total is None else draft.call(aten.add.Tensor, total, square)
    assert total is not None
    return total
