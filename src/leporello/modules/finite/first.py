"""`first_not_finite`: where the first value that is not finite came from, in a call that has failed.

Knows the order of the search: what was there before, the forward sweep, the loss, the backward sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leporello.engine.passing import ALL
from leporello.errors import ArgumentError
from leporello.loop.state import Tree
from leporello.modules.arguments import Call, repacked
from leporello.modules.finite.backward import backward
from leporello.modules.finite.forward import Forward, forward
from leporello.modules.finite.given import given_not_finite
from leporello.modules.finite.loss import loss_not_finite
from leporello.modules.finite.origin import Origin
from leporello.modules.finite.window import Window
from leporello.modules.passes import passing_of
from leporello.modules.planning import begun, rewritten, values_of
from leporello.modules.recurrent import Recurrent, each, in_trees


def first_not_finite(
    net: Recurrent,
    inputs: Tree = None,
    state: Tree = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    targets: Tree = None,
    forcing: Any = None,
    **others: Any,
) -> Origin | None:
    """Where the first value that is not finite came from; None where all are finite.

    The call is run again in plain PyTorch, block after block of steps; one operator at a time where something is found.

    loss      loss(outputs) or, with targets, loss(outputs, targets), of the whole call, as training computes it;
              without one only the forward sweep is looked through
    targets   what the loss compares with
    forcing   as in a call: the targets are then fed back to the net too; without it they are not. Coins are flipped
              anew for a probability: a mask repeats them
    inputs, state, others   as in a call: lengths, resets, steps, draws

    >>> net = Recurrent(lambda x, h: (h, torch.exp(h + x)))
    >>> print(first_not_finite(net, torch.ones(9, 1, 1), torch.zeros(1, 1)))
    exp gives inf, at step 3 of row 0
    """
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network to look through.", came=type(net).__name__, expected="lp.Recurrent"
        )
    fed = {} if forcing is None else {"targets": targets, "forcing": forcing}
    with torch.enable_grad():
        call = begun(net._understood(inputs, state, **fed, **others), net.gradient)
        loop = rewritten(net._planner.loop(net.cell, call), net.cell, call)
        values = values_of(loop, call)
        passing = passing_of(call, net.gradient) if net.gradient.backwards else ALL
    window = Window.of_call(loop, values, call.length, call.batch)
    found = given_not_finite(window, net.cell)
    if found is not None:
        return found
    ran = forward(window)
    if loss is None:
        return ran.origin
    compared = () if targets is None else (targets,)
    outputs, whole = _outputs(net, window, ran, call)
    found, gradients = loss_not_finite(lambda: loss(whole, *compared), list(outputs.values()), call.length, call.batch)
    if found is None:
        arriving = {name: value for name, value in zip(outputs, gradients, strict=True) if value is not None}
        found = backward(window, ran.starts, arriving, passing)
    return found if found is None else ran.origin or found


def _outputs(net: Recurrent, window: Window, ran: Forward, call: Call) -> tuple[dict[str, Tensor], Tree]:
    """The output sequences, which require their gradients, and the tree of them that the loss reads."""
    made: dict[tuple[str, str], Tensor] = {}
    for (kind, name), value in ran.made.items():
        floats = value.is_floating_point() or value.is_complex()
        made[kind, name] = value.detach().requires_grad_(kind == "sequence" and floats)
    whole, _ = in_trees(window.loop, list(made.values()))
    with torch.enable_grad():
        if call.packed is not None:
            whole = repacked(whole, call.packed)
        elif net.batch_first:
            whole = each(lambda leaf: leaf.transpose(0, 1), whole)
    return {name: value for (kind, name), value in made.items() if kind == "sequence" and value.requires_grad}, whole
