"""The rewrite `force`: the next state's feedback leaf is the true value instead of the computed one (teacher forcing).

It is so at every step, or where the boolean sequence `call.coin` is true. If always forced, the delay is a mere shift
of the targets: a Jordan net then has no cycle left.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

aten = torch.ops.aten


def force(loop: Loop, leaf: str, *, always: bool) -> Loop:
    """Add the sequence `call.target` and, unless always forced, the boolean sequence `call.coin`."""
    draft = Draft(loop)
    port = next(port for port in loop.inputs if (port.kind, port.name) == ("state", leaf))
    next_value = draft.add_input(replace(port, kind="sequence", name="call.target", role=Role.TARGET, of=port))
    if not always:
        coin = draft.add_input(Port("sequence", "call.coin", (), torch.bool, port.device, role=Role.COIN))
        computed = draft.output("state", leaf)
        next_value = draft.call(aten.where.self, draft.spread(coin, computed), next_value, computed)
    draft.set_output("state", leaf, next_value)
    return draft.close()
