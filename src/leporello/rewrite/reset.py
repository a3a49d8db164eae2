"""The rewrite `reset`: where reset(t) is true, step t reads the initial state instead of the state of the step before.

No gradient passes back through a reset.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

aten = torch.ops.aten


def reset(loop: Loop, given: Collection[str] = ()) -> Loop:
    """Add the sequence `call.reset`, one boolean per row; a Loop without states is returned as it is.

    given   states whose initial value is an invariant `call.initial.h`, one per row; the others restart from zeros
    """
    draft = Draft(loop)
    states = [(port, node) for port, node in draft.inputs if port.kind == "state"]
    if not states:
        return loop
    is_reset = draft.add_input(Port("sequence", "call.reset", (), torch.bool, states[0][0].device, role=Role.RESET))
    for port, node in states:
        users = list(node.users)
        initial = None
        if port.name in given:
            initial = draft.add_input(
                replace(port, kind="invariant", name=f"call.initial.{port.name}", role=Role.INITIAL_STATE, of=port)
            )
        with draft.after_inputs():
            mask = draft.spread(is_reset, node)
            if initial is None:
                fresh = draft.call(aten.masked_fill.Scalar, node, mask, 0)
            else:
                fresh = draft.call(aten.where.self, mask, initial, node)
        for user in users:
            user.replace_input_with(node, fresh)
        draft.outputs = [(out, fresh if result is node else result) for out, result in draft.outputs]
    return draft.close()
