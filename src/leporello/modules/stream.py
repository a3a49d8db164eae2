"""`stream`: sequences without an end, in windows. The state is carried from window to window, and cut between them.

Knows rows that begin anew, and their first steps; `pieces` brings sequences to the length of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.engine.passing import Passing
from leporello.errors import ArgumentError
from leporello.gradient.backward import Weighed
from leporello.gradient.full import Full
from leporello.gradient.method import Method
from leporello.loop.state import Tree, detach
from leporello.modules.arguments import Call, understood
from leporello.modules.passes import passing_of
from leporello.modules.pieces import Piece, pieces
from leporello.modules.recurrent import Recurrent, each


@dataclass(frozen=True, eq=False)
class Window:
    """Some steps of a stream.

    inputs, targets   of these steps, as they were given
    outputs           differentiable; those of steps that burn in are numbers alone
    state             after the last step, detached
    resets            where a row began anew before a step, or None
    counts            booleans, one per step and row: false where a step only burns in; None where all count
    start             how many steps came before
    """

    inputs: Tree
    targets: Tree
    outputs: Tree
    state: Tree
    resets: Tensor | None
    counts: Tensor | None
    start: int


def stream(net: Recurrent, pairs: Any, window: int, *, burn_in: int = 0, state: Tree = None) -> Iterator[Window]:
    """Go through a long sequence in windows of some steps; gradients stay within a window, the state is carried on.

        for w in lp.stream(net, pairs, window=35):
            loss = criterion(w.outputs, w.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    pairs     (inputs, targets), (length, batch, ...) each; or an iterable of such pairs of any lengths, where each
              goes on where the last one ended; or of triples with resets, (length, batch) booleans: true where a row
              begins anew before that step
    window    steps of a window; the last one may be shorter
    burn_in   so many first steps of a new sequence, in each row, run without gradient: they only bring the state to
              where it belongs
    state     before the first step; by default the cell's initial state

    Memory does not grow with the length. With batch_first the axes of length and batch change places.
    """
    if not isinstance(net, Recurrent):
        raise ArgumentError("the argument 'net' is no network.", came=type(net).__name__, expected="lp.Recurrent")
    _refuse("window", window, 1, "a positive integer: the steps of a window")
    _refuse("burn_in", burn_in, 0, "an integer from 0 up: the first steps of a new sequence")
    if burn_in:
        _burning(net.gradient)  # a refusal comes before any work
    return _windows(net, pieces(pairs, window, net.batch_first), burn_in, state)


def _windows(net: Recurrent, parts: Iterator[Piece], burn_in: int, state: Tree) -> Iterator[Window]:
    start = 0
    age: Tensor | int = 0
    for piece in parts:
        shown, counts = piece.turned() if net.batch_first else piece, None
        if burn_in:
            ages = _ages(age, piece)
            outputs, state = _burnt(net, piece, state, ages, burn_in)
            age, counts = ages[-1] + 1, burn_in <= ages.T if net.batch_first else ages >= burn_in
        else:
            outputs, state = net(shown.inputs, state, resets=shown.resets)
        state = detach(state)
        found = Window(shown.inputs, shown.targets, outputs, state, shown.resets, counts, start)
        del outputs, shown  # the generator keeps nothing of a window alive
        yield found
        del found
        start += piece.length


def _burnt(net: Recurrent, piece: Piece, state: Tree, ages: Tensor, burn_in: int) -> tuple[Tree, Tree]:
    """A window in which no gradient enters the first steps of a sequence."""
    call = understood(net.cell, piece.inputs, state, resets=piece.resets)
    passing = _passing(call, net.gradient, (ages != burn_in).to(call.device))
    outputs, state = net._run(call, passing, gradient=_burning(net.gradient))
    counts = (ages >= burn_in).to(call.device)
    outputs = each(lambda leaf: _detached(leaf, counts), outputs)
    return each(lambda leaf: leaf.transpose(0, 1), outputs) if net.batch_first else outputs, state


def _ages(before: Tensor | int, piece: Piece) -> Tensor:
    """How many steps of its sequence each row has behind it before each step, (length, batch)."""
    times = torch.arange(piece.length).unsqueeze(1).expand(piece.length, piece.batch)
    if piece.resets is None:
        return times + before
    begun = torch.where(piece.resets.cpu(), times, -1).cummax(0).values
    return torch.where(begun >= 0, times - begun, times + before)


def _passing(call: Call, method: Method, crosses: Tensor) -> Passing:
    """What the method passes back, and nothing into steps that burn in."""
    own, keep = passing_of(call, method), crosses.to(next(leaf for _, leaf in call.states).real.dtype)
    return Passing(keep if own.weights is None else own.weights * keep, own.groups, own.limit)


def _detached(leaf: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts.reshape(*counts.shape, *[1] * (leaf.dim() - 2)), leaf, leaf.detach())


def _burning(method: Method) -> Method:
    """The method that carries weights for this one."""
    if isinstance(method, Weighed):
        return method
    if type(method) is Full:
        return Weighed(clip_state=method.clip_state)
    raise ArgumentError(
        f"the argument 'burn_in' does not go with the gradient method {method!r}.",
        expected="lp.Full(), lp.Truncated() or lp.RandomTruncated()",
        tries="leave out burn_in=, and run the first steps by themselves under torch.no_grad()",
    )


def _refuse(argument: str, value: Any, least: int, expected: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"the argument '{argument}' is no number of steps.", came=repr(value), expected=expected)
