"""The rewrite `mask`: batches of unequal lengths. Each row's final state is the one at its own end, and outputs past it
are zero.

The contents of the padding have no effect: past a row's end the step reads the row's first input. (Not zeros: a step
that divides by its input, or takes a logarithm, has no derivative at zero, and 0 * inf would reach the parameters.)

A state on a cycle is held by a `where` past the end. A state on no cycle (a mere shift) is left as it is, because a
`where` would make a cycle; its value at the row's end is computed as a total over the sequence instead.
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
    sequences = [(port, node) for port, node in draft.inputs if port.kind == "sequence"]
    past = draft.add_input(Port("sequence", "call.past", (), torch.bool, device, role=Role.PAST))
    for port, node in sequences:
        _clean_padding(draft, port, node, past)
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


def _clean_padding(draft: Draft, port: Port, node: torch.fx.Node, past: torch.fx.Node) -> None:
    """Replace what the step reads of an input in the padding, so that no NaN from there reaches a gradient.

    It reads the row's first input there; of a sequence that the call adds, such as targets, zeros.
    """
    users = list(node.users)
    if port.role not in (Role.INPUT, Role.LOSS_TARGET):  # added by the call, such as targets
        with draft.after_inputs():
            clean = draft.call(aten.masked_fill.Scalar, node, draft.spread(past, node), 0)
    else:
        first_input = replace(port, kind="invariant", name=f"call.first.{port.name}", role=Role.FIRST_INPUT, of=port)
        first = draft.add_input(first_input)
        with draft.after_inputs():
            clean = draft.call(aten.where.self, draft.spread(past, node), first, node)
    for user in users:
        user.replace_input_with(node, clean)
    draft.outputs = [(port, clean if result is node else result) for port, result in draft.outputs]


def held_states(loop: Loop) -> dict[torch.fx.Node, torch.fx.Node]:
    """For each next state that a step computes, the value as `mask` holds it, where a backward sweep may read that
    instead, so that only one of the two is saved; empty for a Loop without a mask.

    Before a row's end the two are equal. Past it the held value is the state at the row's end, for which the step has
    been computed already, and incoming gradients are 0. States whose computed value a reduction reads are left out
    (`_is_reduced`).
    """
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
    """Whether an operator other than views, `cat` and pointwise functions reads a value, or what they make of it.

    Its result may be saved, and does not fit the held value: where no element equals the saved amax, the gradient is
    0 / 0; exp(value - logsumexp) may be infinite, and 0 times that is NaN.
    """
    pending, seen = list(node.users), set[torch.fx.Node]()
    while pending:
        user = pending.pop()
        if user in seen or user.op != "call_function":
            continue
        seen.add(user)
        tags = getattr(user.target, "tags", ())
        if not is_view(user) and torch.Tag.pointwise not in tags and user.target is not aten.cat.default:
            return True
        pending += user.users
    return False
