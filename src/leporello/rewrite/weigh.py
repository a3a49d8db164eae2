"""The rewrite `weigh`: a backward Loop in which what a delay passes on is multiplied by a weight per step and row.

The weight at t multiplies what step t passes back to step t-1: 1 everywhere is full back-propagation through time, 0 at
window borders is truncation, 0 or 1/p at random is randomised truncation.
"""

from __future__ import annotations

import torch

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

aten = torch.ops.aten


def weigh(loop: Loop) -> Loop:
    """Add the sequence `call.weight`, [rows], and multiply every next state by it; without states the Loop as it is."""
    draft = Draft(loop)
    states = [(port, node) for port, node in draft.outputs if port.kind == "state"]
    if not states:
        return loop
    real = states[0][1].meta["val"].real.dtype if states[0][0].dtype.is_complex else states[0][0].dtype
    weight = draft.add_input(Port("sequence", "call.weight", (), real, states[0][0].device, role=Role.WEIGHT))
    for port, node in states:
        dtype = port.dtype.to_real()
        cast = weight if dtype == real else draft.call(aten._to_copy.default, weight, dtype=dtype)
        draft.set_output("state", port.name, draft.call(aten.mul.Tensor, node, draft.spread(cast, node)))
    return draft.close()
