"""The arguments of an analysis: checked, with errors in the user's words, and converted to float64.

Gradients that shrink or grow over hundreds of steps leave the range of float32, so every analysis runs the same step in
float64. Known shortcoming: a step that names float32 in its own code cannot run in float64, and raises an error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leporello.call.arguments import Call, checked_call
from leporello.call.inputs import ArgumentAxes
from leporello.errors import ArgumentError, LeporelloError
from leporello.loop.context import context_of
from leporello.loop.state import Tree, described, leaf_names, leaves_of, map_leaves
from leporello.nets.recurrent import Recurrent

# ---- checks


def check_net(net: Any) -> None:
    """Raise unless `net` is an `lp.Recurrent`."""
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network to look into.",
            came=f"the class {net.__name__}" if isinstance(net, type) else type(net).__name__,
            expected="lp.Recurrent",
            tries="lp.Recurrent(cell); of a network of several, take its parts one by one",
        )


def check_range(name: str, value: Any, least: int, largest: int, largest_is: str) -> None:
    """Raise unless an argument is an integer in a range.

    largest_is   what the largest value is, for the error: "the length of the inputs"
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        raise ArgumentError(
            f"the argument '{name}' is out of range.",
            came=repr(value),
            expected=f"an integer from {least} to {largest}, {largest_is}",
        )


def check_loss(loss: Any) -> None:
    """Raise unless `loss` can be called."""
    if not callable(loss):
        raise ArgumentError(
            "the argument 'loss' is no function.",
            came=described(loss),
            expected="loss(output) -> a number per row; loss(output, target) with targets=",
        )


def check_targets(targets: Tree, length: int, batch: int, axes: ArgumentAxes) -> None:
    """Raise unless every leaf of the targets, in the caller's axes, has this length and batch."""
    for leaf in leaves_of(targets):
        if not isinstance(leaf, Tensor) or tuple(axes.to_time_first(leaf).shape[:2]) != (length, batch):
            raise ArgumentError(
                "the argument 'targets' has the wrong shape.",
                came=described(leaf),
                expected=axes.shape(length, batch, "..."),
            )


def loss_per_row(
    loss: Callable[..., Any],
    output: Tree,
    target: tuple[Tree, ...],
    rows: int,
    output_is: str = "one step's output",
) -> Tensor:
    """Call the loss and check that it returns a number per row; several numbers per row are averaged: (rows,).

    loss        one that does not reduce over rows
    target      a tuple of the target, or an empty one
    rows        how many rows the output has
    output_is   what the output is, for errors
    """
    try:
        values = loss(output, *target)
    except LeporelloError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"the argument 'loss' fails on {output_is}" + (" and target." if target else "."),
            says=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            came=", ".join(map(described, (output, *target))),
            tries=None if target else "targets=, if the loss compares the output with something",
        ) from error
    if not isinstance(values, Tensor) or not values.dim() or values.shape[0] != rows or values.is_complex():
        raise ArgumentError(
            "the argument 'loss' gives no number per row.",
            came=described(values),
            expected=f"[{rows}], or [{rows}, ...], which is averaged: {rows} rows came in",
            tries="lambda output: output.square().sum(-1); no sum or mean over rows",
        )
    return values if values.dim() == 1 else values.flatten(1).mean(1)


# ---- float64


def call_in_float64(
    net: Recurrent,
    inputs: Tree,
    state: Tree = None,
    *,
    draws: Sequence[Tensor] | None = None,
    one_step: bool = False,
    **arguments: Any,
) -> tuple[Recurrent, Call]:
    """Check a call; return the network in float64 (itself where it already is) and the call in float64.

    one_step    the arguments come without the length axis
    arguments   the other arguments of a call of the net
    """
    check_net(net)
    batch_first = not one_step and net.batch_first
    with torch.no_grad():
        call = checked_call(net.cell, inputs, state, batch_first=batch_first, one_step=one_step, **arguments)
    inputs, state = map_leaves(to_float64, call.inputs), map_leaves(to_float64, call.state)
    names = leaf_names(inputs, "x")
    contexts = [replace(leaf, tensor=to_float64(leaf.tensor)) for leaf in call.contexts]
    return net_in_float64(net), replace(
        call,
        inputs=inputs,
        state=state,
        initial=None if call.initial is None else map_leaves(to_float64, call.initial),
        targets=to_float64(call.targets),
        context=context_of(contexts, call.context),
        contexts=contexts,
        draws=[to_float64(draw) for draw in draws] if isinstance(draws, (list, tuple)) else draws,
        one_step=False,  # draws come as `net.draw` gives them, with the length axis
        sequences=[(name, leaf) for name, leaf in zip(names, leaves_of(inputs), strict=True) if leaf is not None],
        states=[(name, to_float64(leaf)) for name, leaf in call.states],
    )


def to_float64(leaf: Any) -> Any:
    """A detached tensor in float64 or complex128; integers, and what is no tensor, are returned unchanged."""
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.is_complex():
        return leaf.detach().to(torch.complex128)
    return leaf.detach().double() if leaf.is_floating_point() else leaf


def net_in_float64(net: Recurrent) -> Recurrent:
    """A copy of the network in float64, itself where it already is."""
    if all(to_float64(leaf).dtype == leaf.dtype for leaf in (*net.cell.parameters(), *net.cell.buffers())):
        return net
    converted = copy.deepcopy(net)
    converted.cell._apply(to_float64)  # .to(float64) would make complex parameters real
    return converted
