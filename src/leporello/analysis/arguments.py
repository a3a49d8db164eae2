"""A network and its call in float64, checked: what every instrument starts from.

Gradients that shrink or grow over hundreds of steps leave the range of float32, so the numbers are those of the same
step in float64. Known shortcoming: a step that names float32 in its own code cannot be taken there, and says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError, LeporelloError
from leporello.loop.state import Tree, described, leaf_names, leaves_of, map_leaves
from leporello.modules.arguments import Call, understood
from leporello.modules.recurrent import Recurrent


def exact(
    net: Recurrent,
    inputs: Tree,
    state: Tree = None,
    *,
    draws: Sequence[Tensor] | None = None,
    one_step: bool = False,
    **arguments: Any,
) -> tuple[Recurrent, Call]:
    """The net in float64 (itself where it is so already) and its call, understood and in float64 too.

    arguments   those of a call; `one_step` says that they come without the length axis
    """
    refuse_other_nets(net)
    first = not one_step and net.batch_first
    with torch.no_grad():
        call = understood(net.cell, inputs, state, batch_first=first, one_step=one_step, **arguments)
    return wide_net(net), _wide_call(call, draws)


def wide(leaf: Any) -> Any:
    """A tensor in float64 or complex128; integers, and what is no tensor, as they are."""
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.is_complex():
        return leaf.detach().to(torch.complex128)
    return leaf.detach().double() if leaf.is_floating_point() else leaf


def wide_net(net: Recurrent) -> Recurrent:
    """The net in float64, itself where it is so already."""
    narrow = [leaf for leaf in (*net.cell.parameters(), *net.cell.buffers()) if wide(leaf).dtype != leaf.dtype]
    if not narrow:
        return net
    made = copy.deepcopy(net)
    made.cell._apply(wide)  # .to(float64) would make complex parameters real
    return made


def _wide_call(call: Call, draws: Sequence[Tensor] | None) -> Call:
    inputs, state = map_leaves(wide, call.inputs), map_leaves(wide, call.state)
    names = leaf_names(inputs, "x")
    return replace(
        call,
        inputs=inputs,
        state=state,
        initial=None if call.initial is None else map_leaves(wide, call.initial),
        targets=wide(call.targets),
        draws=[wide(draw) for draw in draws] if isinstance(draws, (list, tuple)) else draws,
        sequences=[pair for pair in zip(names, leaves_of(inputs), strict=True) if pair[1] is not None],
        states=[(name, wide(leaf)) for name, leaf in call.states],
    )


def refuse_other_nets(net: Any) -> None:
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network to look into.",
            came=f"the class {net.__name__}" if isinstance(net, type) else type(net).__name__,
            expected="lp.Recurrent",
            tries="lp.Recurrent(cell); of a network of several, take its parts one by one",
        )


def refuse_out_of_range(name: str, value: Any, least: int, most: int, what: str) -> None:
    """what   the largest value is"""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(
            f"the argument '{name}' is out of range.",
            came=repr(value),
            expected=f"an integer from {least} to {most}, {what}",
        )


def refuse_no_loss(loss: Any) -> None:
    if not callable(loss):
        raise ArgumentError(
            "the argument 'loss' is no function.",
            came=described(loss),
            expected="loss(output) -> a number per row; loss(output, target) with targets=",
        )


def row_by_row(
    loss: Callable[..., Any], output: Tree, target: tuple[Tree, ...], rows: int, of: str = "one step's output"
) -> Tensor:
    """The loss of each row, (rows,).

    loss     one that does not reduce over rows
    target   the target in brackets, or nothing
    of       what the output is, in words
    """
    try:
        found = loss(output, *target)
    except LeporelloError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"the argument 'loss' fails on {of}" + (" and target." if target else "."),
            says=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            came=", ".join(map(described, (output, *target))),
            tries=None if target else "targets=, if the loss compares the output with something",
        ) from error
    if not isinstance(found, Tensor) or not found.dim() or found.shape[0] != rows or found.is_complex():
        raise ArgumentError(
            "the argument 'loss' gives no number per row.",
            came=described(found),
            expected=f"[{rows}], or [{rows}, ...], which is averaged: {rows} rows came in",
            tries="lambda output: output.square().sum(-1); no sum or mean over rows",
        )
    return found if found.dim() == 1 else found.flatten(1).mean(1)
