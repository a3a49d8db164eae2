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
from leporello.loop.port import Port, Role
from leporello.loop.value_classes import is_view, states_on_cycles

aten = torch.ops.aten


def mask(loop: Loop) -> Loop:
    """Add the sequences `call.past` (true past a row's end) and, where needed, `call.elsewhere` (false at its end).

    Every input gets an invariant per row, `call.first.x`: what the step reads in the padding.
    States on no cycle get a total per row, `call.final.s`: their value at the row's end.
    """
    cyclic = states_on_cycles(loop)
    draft = Draft(loop)
    device = loop.inputs[0].device if loop.inputs else torch.get_default_device()
    own = [(port, node) for port, node in draft.inputs if port.kind == "sequence"]
    past = draft.add_input(Port("sequence", "call.past", (), torch.bool, device, role=Role.PAST))
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
                last = last or draft.add_input(
                    Port("sequence", "call.elsewhere", (), torch.bool, device, role=Role.ELSEWHERE)
                )
                only = draft.call(aten.masked_fill.Scalar, node, draft.spread(last, node), 0)
                total = replace(port, kind="total", name=f"call.final.{port.name}", role=Role.FINAL_STATE, of=port)
                finals.append((total, only))
    draft.outputs = [*outputs, *finals]
    return draft.close()


def _clean(draft: Draft, port: Port, node: torch.fx.Node, past: torch.fx.Node) -> None:
    """Replace an input by a value that the step can compute with in the padding: no NaN there may reach a gradient."""
    users = list(node.users)
    if port.role not in (Role.INPUT, Role.LOSS_TARGET):  # what the call added, such as targets
        with draft.after_inputs():
            clean = draft.call(aten.masked_fill.Scalar, node, draft.spread(past, node), 0)
    else:
        held = replace(port, kind="invariant", name=f"call.first.{port.name}", role=Role.FIRST_INPUT, of=port)
        first = draft.add_input(held)
        with draft.after_inputs():
            clean = draft.call(aten.where.self, draft.spread(past, node), first, node)
    for user in users:
        user.replace_input_with(node, clean)
    draft.outputs = [(port, clean if result is node else result) for port, result in draft.outputs]


def held_states(loop: Loop) -> dict[torch.fx.Node, torch.fx.Node]:
    """For a masked Loop: next states of the step -> what the mask holds in their place, where a backward sweep may read
    the held value instead of keeping both.

    Before a row's end the two are equal. Past it the held one is the state of the row's last step: a value that the
    step has computed with already, and incoming gradients are 0 there. Not where a reduction reads the step's own
    value (`_is_reduced`)."""
    past = [node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.role is Role.PAST]
    replacements = {}
    for into, before in loop.delays.values():
        if past and into.target is aten.where.self and len(into.all_input_nodes) == 3:
            where, kept, after = into.all_input_nodes
            while is_view(where):
                where = where.all_input_nodes[0]
            if where is past[0] and kept is before and not _is_reduced(after):
                replacements[after] = into
    return replacements


def _is_reduced(node: torch.fx.Node) -> bool:
    """Whether more than pointwise functions read a step's value. Their results may be kept, and do not fit the held
    value: where no element equals the kept amax, the gradient is 0 / 0; exp(value - logsumexp) may be infinite, and 0
    times that is NaN."""
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
