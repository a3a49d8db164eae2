"""The rewrite `mask`: batches of unequal lengths. Each row's final state is the one at its own end, outputs past it are
zero, and what stands in the padding never matters: the step reads the row's first input there. (Not zeros: a step that
divides by its input, or takes a logarithm, has no derivative at zero, and 0 * inf would reach the parameters.)

A state on a cycle is held by a `where` past the end; one on no cycle (a mere shift) stays one, and its value at the end
is summed out of the sequence instead: a `where` there would make a cycle.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from leporello.loop.draft import Draft
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.value_classes import is_view, states_on_cycles

aten = torch.ops.aten


def mask(loop: Loop) -> Loop:
    """Add the sequences `call.past` (true past a row's end) and, where needed, `call.elsewhere` (false at its end).

    Every input gets an invariant per row, `call.first.x`: what the step reads in the padding.
    States on no cycle get a total per row, `call.final.s`: their value at the row's end.
    """
    cyclic = states_on_cycles(loop)
    draft = Draft(loop)
    device = loop.inputs[0].device if loop.inputs else torch.device("cpu")
    own = [(port, node) for port, node in draft.inputs if port.kind == "sequence"]
    past = draft.add_input(Port("sequence", "call.past", (), torch.bool, device))
    for port, node in own:
        _clean(draft, port, node, past)
    outputs = []
    finals = []
    last = None
    for port, node in draft.outputs:
        if port.kind == "sequence":
            outputs.append((port, draft.call(aten.masked_fill.Scalar, node, draft.spread(past, node), 0)))
        elif port.name in cyclic:
            before = draft.input("state", port.name)
            outputs.append((port, draft.call(aten.where.self, draft.spread(past, node), before, node)))
        else:
            outputs.append((port, node))
            if node is not draft.input("state", port.name):
                last = last or draft.add_input(Port("sequence", "call.elsewhere", (), torch.bool, device))
                only = draft.call(aten.masked_fill.Scalar, node, draft.spread(last, node), 0)
                total = Port("total", f"call.final.{port.name}", port.shape, port.dtype, port.device, rows=True)
                finals.append((total, only))
    draft.outputs = [*outputs, *finals]
    return draft.close()


def _clean(draft: Draft, port: Port, node: torch.fx.Node, past: torch.fx.Node) -> None:
    """A value the step can bear in the place of padding: not even NaN must reach a gradient."""
    users = list(node.users)
    if port.name.startswith("call."):
        with draft.after_inputs():
            clean = draft.call(aten.masked_fill.Scalar, node, draft.spread(past, node), 0)
    else:
        held = replace(port, kind="invariant", name=f"call.first.{port.name}", rows=True)
        first = draft.add_input(held)
        with draft.after_inputs():
            clean = draft.call(aten.where.self, draft.spread(past, node), first, node)
    for user in users:
        user.replace_input_with(node, clean)
    draft.outputs = [(port, clean if found is node else found) for port, found in draft.outputs]


def stand_ins(loop: Loop) -> dict[torch.fx.Node, torch.fx.Node]:
    """Values that a held state can stand for in a backward sweep: before a row's end it is the same value, and past it
    the value of the row's last step, where gradients of 0 meet it, and all that is made of it (as what the step has
    borne before)."""
    past = [node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.name == "call.past"]
    found = {}
    for into, before in loop.delays.values():
        if past and into.target is aten.where.self and len(into.all_input_nodes) == 3:
            where, kept, after = into.all_input_nodes
            while is_view(where):
                where = where.all_input_nodes[0]
            if where is past[0] and kept is before and not _is_gathered(after):
                found[after] = into
    return found


def _is_gathered(node: torch.fx.Node) -> bool:
    """Whether more than pointwise functions read a step's value. What they give may be kept, and would not be that of
    what stands for it: where no value equals the amax, the gradient is 0 / 0; exp(value - logsumexp) may be infinite,
    and 0 times that is NaN."""
    waiting, seen = list(node.users), set[torch.fx.Node]()
    while waiting:
        user = waiting.pop()
        if user in seen or user.op != "call_function":
            continue
        seen.add(user)
        tags = getattr(user.target, "tags", ())
        if not is_view(user) and torch.Tag.pointwise not in tags and user.target is not aten.cat.default:
            return True
        waiting += user.users
    return False
