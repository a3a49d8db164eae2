"""`stream`: sequences without an end, in windows. The state is carried from window to window, and detached between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call, checked_call
from leporello.call.inputs import map_tensors
from leporello.call.values import passing_of
from leporello.engine.state_gradient import Passing
from leporello.errors import ArgumentError, StateMismatch
from leporello.gradient.method import Method
from leporello.gradient.through_time import Full, Weighted
from leporello.loop.state import Tree, described, detach, leaves_of
from leporello.nets.recurrent import Recurrent


@dataclass(frozen=True, eq=False)
class Window:
    """Some steps of a stream.

    inputs, targets   of these steps, as they were passed
    outputs           differentiable; those of steps that burn in are detached
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
        window = Window(shown.inputs, shown.targets, outputs, state, shown.resets, counts, start)
        del outputs, shown  # the generator keeps nothing of a window alive
        yield window
        del window
        start += piece.length


def _burnt(net: Recurrent, piece: Piece, state: Tree, ages: Tensor, burn_in: int) -> tuple[Tree, Tree]:
    """Outputs and final state of a window in which no gradient enters the first `burn_in` steps of a sequence.

    ages   of each step in its sequence, as `_ages` counts them
    """
    call = checked_call(net.cell, piece.inputs, state, resets=piece.resets)
    passing = _passing(call, net.gradient, (ages != burn_in).to(call.device))
    outputs, state = net._run(call, passing, gradient=_burning(net.gradient))
    counts = (ages >= burn_in).to(call.device)
    outputs = map_tensors(lambda leaf: _detached(leaf, counts), outputs)
    return map_tensors(lambda leaf: leaf.transpose(0, 1), outputs) if net.batch_first else outputs, state


def _ages(before: Tensor | int, piece: Piece) -> Tensor:
    """For each step the number of steps since the row's sequence began, (length, batch).

    before   the age of each row at the first step, if no reset is there
    """
    times = torch.arange(piece.length).unsqueeze(1).expand(piece.length, piece.batch)
    if piece.resets is None:
        return times + before
    begun = torch.where(piece.resets.cpu(), times, -1).cummax(0).values
    return torch.where(begun >= 0, times - begun, times + before)


def _passing(call: Call, method: Method, crosses: Tensor) -> Passing:
    """What the method passes back, and nothing into steps that burn in.

    crosses   (length, batch): whether a gradient may pass from a step to the one before; false at the first that counts
    """
    passing, keep = passing_of(call, method), crosses.to(next(leaf for _, leaf in call.states).real.dtype)
    weights = keep if passing.weights is None else passing.weights * keep
    return Passing(weights, passing.groups, passing.limit)


def _detached(leaf: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts.reshape(*counts.shape, *[1] * (leaf.dim() - 2)), leaf, leaf.detach())


def _burning(method: Method) -> Method:
    """The method that is run for a net's own: one with weights, by which burn-in cuts the gradient; or a refusal."""
    if isinstance(method, Weighted):
        return method
    if type(method) is Full:
        return Weighted(clip_state=method.clip_state)
    raise ArgumentError(
        f"the argument 'burn_in' does not go with the gradient method {method!r}.",
        expected="lp.Full(), lp.Truncated() or lp.RandomTruncated()",
        tries="leave out burn_in=, and run the first steps by themselves under torch.no_grad()",
    )


def _refuse(argument: str, value: Any, least: int, expected: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"the argument '{argument}' is no number of steps.", came=repr(value), expected=expected)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some steps, with the length axis in front."""

    inputs: Tree
    targets: Tree
    resets: Tensor | None

    @property
    def length(self) -> int:
        return _sizes(self.inputs)[0]

    @property
    def batch(self) -> int:
        return _sizes(self.inputs)[1]

    def cut(self, start: int, end: int) -> Piece:
        inputs, targets, resets = (
            map_tensors(lambda leaf: leaf[start:end], tree) for tree in (self.inputs, self.targets, self.resets)
        )
        return Piece(inputs, targets, resets)

    def turned(self) -> Piece:
        """With length and batch exchanged."""
        return Piece(
            *(map_tensors(lambda leaf: leaf.transpose(0, 1), t) for t in (self.inputs, self.targets, self.resets))
        )


def pieces(pairs: Any, window: int, batch_first: bool) -> Iterator[Piece]:
    """The pairs of `stream` as pieces of `window` steps, the last one perhaps shorter.

    batch_first   whether the pairs have the batch axis in front; pieces never do
    """
    waiting: list[Piece] = []
    for number, pair in enumerate(_listed(pairs)):
        piece = _checked_piece(pair, number, batch_first)
        if waiting and piece.batch != waiting[0].batch:
            raise _other_batch(number, piece.batch, waiting[0].batch)
        waiting.append(piece)
        while sum(piece.length for piece in waiting) >= window:
            joined = _joined(waiting)
            yield joined.cut(0, window)
            waiting = [joined.cut(window, joined.length)] if joined.length > window else [joined.cut(0, 0)]
    if waiting and (rest := _joined(waiting)).length:
        yield rest


def _listed(pairs: Any) -> Iterable[Any]:
    """The argument `pairs` as an iterable of pairs: a single pair becomes a list of one."""
    if isinstance(pairs, (tuple, list)) and len(pairs) in (2, 3) and all(_is_sequence(part) for part in pairs[:2]):
        return [pairs]
    if isinstance(pairs, Tensor) or not isinstance(pairs, Iterable):
        raise ArgumentError(
            "the argument 'pairs' holds no inputs and targets.",
            came=described(pairs),
            expected="(inputs, targets), or an iterable of such pairs, or of triples with resets",
            tries="lp.stream(net, (inputs, targets), window=35)",
        )
    return pairs


def _is_sequence(part: Any) -> bool:
    leaves = leaves_of(part) if not isinstance(part, (tuple, list)) else []
    return bool(leaves) and all(isinstance(leaf, Tensor) for leaf in leaves)


def _checked_piece(pair: Any, number: int, batch_first: bool) -> Piece:
    if not isinstance(pair, (tuple, list)) or len(pair) not in (2, 3):
        raise ArgumentError(
            f"number {number} of the argument 'pairs' is no pair.",
            came=described(pair),
            expected="(inputs, targets), or (inputs, targets, resets)",
        )
    inputs, targets, resets = (*pair, None)[:3]
    named = {"inputs": inputs, "targets": targets, **({} if resets is None else {"resets": resets})}
    for name, tree in named.items():
        for leaf in leaves_of(tree):
            if not isinstance(leaf, Tensor) or leaf.dim() < 2:
                raise ArgumentError(
                    f"the {name} in number {number} of the argument 'pairs' are no sequence.",
                    came=described(leaf),
                    expected="tensors (batch, length, ...)" if batch_first else "tensors (length, batch, ...)",
                )
    first = _sizes(inputs)
    for name, tree in named.items():
        if any(tuple(leaf.shape[:2]) != first for leaf in leaves_of(tree)):
            raise ArgumentError(
                f"the {name} in number {number} of the argument 'pairs' have another length or batch than the inputs.",
                came=described(tree),
                expected=f"{first[0]} by {first[1]} in front",
            )
    piece = Piece(inputs, targets, None if resets is None else resets.bool())
    return piece.turned() if batch_first else piece


def _sizes(inputs: Tree) -> tuple[int, int]:
    leaf = leaves_of(inputs)[0]
    return leaf.shape[0], leaf.shape[1]


def _other_batch(number: int, came: int, expected: int) -> StateMismatch:
    return StateMismatch(
        f"number {number} of the argument 'pairs' has another batch than the state that is carried on.",
        came=f"{came} rows",
        expected=f"{expected} rows, as in those before",
        tries="a row that ends is followed by another in its place, with resets; or begin another lp.stream",
    )


def _joined(waiting: list[Piece]) -> Piece:
    """The pieces one after the other; where only some have resets, the others get none that is true."""
    if len(waiting) == 1:
        return waiting[0]
    resets = None
    if any(piece.resets is not None for piece in waiting):
        resets = torch.cat([_resets(piece) for piece in waiting])
    inputs, targets = (_cat([getattr(piece, name) for piece in waiting]) for name in ("inputs", "targets"))
    return Piece(inputs, targets, resets)


def _resets(piece: Piece) -> Tensor:
    if piece.resets is not None:
        return piece.resets
    return torch.zeros(piece.length, piece.batch, dtype=torch.bool, device=leaves_of(piece.inputs)[0].device)


def _cat(trees: list[Tree]) -> Tree:
    columns = zip(*(leaves_of(tree) for tree in trees), strict=True)
    return pytree.tree_unflatten([torch.cat(column) for column in columns], pytree.tree_structure(trees[0]))


def resets_after(dones: Tensor, first: Tensor | None = None) -> Tensor:
    """Resets one step later: an episode that is done after step t begins anew before step t+1.

    dones   (length, batch) booleans
    first   (batch,) booleans: whether the first step begins anew (not by default)

    >>> resets_after(torch.tensor([[False], [True], [False]])).squeeze(1).tolist()
    [False, False, True]
    """
    dones = dones.bool()
    begin = torch.zeros_like(dones[:1]) if first is None else first.bool().unsqueeze(0)
    return torch.cat([begin, dones[:-1]])
