"""The rewrite `clip`: a backward Loop in which the gradient of a row's state has a largest norm.

It is clipped as it comes to a step. The norm is over all leaves of the state; where it is larger than the limit, all
are made smaller by the same factor. Past a row's end nothing is clipped: there the gradient of the final state is only
carried to the end. That of a leaf which is a mere shift comes to the end as an input of its own (see `mask`), and is
clipped with the others.
"""

from __future__ import annotations

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

aten = torch.ops.aten


def clip(loop: Loop, limit: float) -> Loop:
    """Clip what arrives, and add the total `call.clipped`."""
    draft = Draft(loop)
    states = [(port, node) for port, node in draft.inputs if port.kind == "state"]
    if not states:
        return loop
    past = next((node for port, node in draft.inputs if port.reads_forward(Role.PAST)), None)
    users = {node: list(node.users) for _, node in draft.inputs}
    kind = max((port.dtype.to_real() for port, _ in states), key=lambda dtype: torch.finfo(dtype).bits)
    with draft.after_inputs():
        arriving = {port.name: _arriving(draft, port.name, node, users) for port, node in states}
        square = _square(draft, list(arriving.values()), kind)
        acts = draft.call(aten.gt.Scalar, square, limit * limit)
        if past is not None:
            acts = draft.call(aten.logical_and.default, acts, draft.call(aten.logical_not.default, past))
        largest = draft.call(aten.clamp_min.default, square, limit * limit)
        factor = draft.call(aten.mul.Tensor, draft.call(aten.rsqrt.default, largest), limit)
        for port, node in states:
            own = factor
            if port.dtype.to_real() != kind:
                own = draft.call(aten._to_copy.default, factor, dtype=port.dtype.to_real())
            whole = arriving[port.name]
            smaller = draft.call(aten.mul.Tensor, whole, draft.spread(own, node))
            clipped = draft.call(aten.where.self, draft.spread(acts, node), smaller, whole)
            for user in users[node]:
                user.replace_input_with(node, clipped)
            draft.outputs = [(out, clipped if result is node else result) for out, result in draft.outputs]
        count = draft.call(aten.sum.dim_IntList, draft.call(aten._to_copy.default, acts, dtype=kind), [0])
    draft.outputs.append(
        (Port("total", "call.clipped", (), kind, states[0][0].device, rows=False, role=Role.CLIP_COUNT), count)
    )
    return draft.close()


def _arriving(draft: Draft, name: str, node: fx.Node, users: dict[fx.Node, list[fx.Node]]) -> fx.Node:
    """The gradient of one leaf as it arrives, with what comes to a row's end on another way."""
    final = next((node for port, node in draft.inputs if _is_gradient_of_final(port, name)), None)
    elsewhere = next((node for port, node in draft.inputs if port.reads_forward(Role.ELSEWHERE)), None)
    if final is None or elsewhere is None:
        return node
    nothing = draft.call(aten.zeros_like.default, final)
    for user in users[final]:
        user.replace_input_with(final, nothing)
    own = draft.call(aten.masked_fill.Scalar, final, draft.spread(elsewhere, node), 0)
    return draft.call(aten.add.Tensor, node, own)


def _is_gradient_of_final(port: Port, state: str) -> bool:
    """Whether it is the incoming gradient of a state's value at the row's end."""
    final = port.of
    if port.role is not Role.GRADIENT or final is None or final.role is not Role.FINAL_STATE:
        return False
    return final.of is not None and final.of.name == state


def _square(draft: Draft, states: list[fx.Node], kind: torch.dtype) -> fx.Node:
    """The square of the norm, one number per row."""
    total = None
    for node in states:
        value = node.meta["val"]
        if value.dtype.is_complex:
            node = draft.call(aten.view_as_real.default, node)
        elif value.dtype != kind:
            node = draft.call(aten._to_copy.default, node, dtype=kind)
        own = draft.call(aten.mul.Tensor, node, node)
        axes = list(range(1, node.meta["val"].dim()))
        own = draft.call(aten.sum.dim_IntList, own, axes) if axes else own
        total = own if total is None else draft.call(aten.add.Tensor, total, own)
    assert total is not None
    return total
