"""Pieces of a long sequence: from what a user hands to `stream`, of any lengths, to pieces of the length of a window.

Knows axes and lengths; knows nothing of networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, StateMismatch
from leporello.loop.state import Tree, described, leaves_of, map_leaves


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
            _each(lambda leaf: leaf[start:end], tree) for tree in (self.inputs, self.targets, self.resets)
        )
        return Piece(inputs, targets, resets)

    def turned(self) -> Piece:
        """With the first two axes in each other's place."""
        return Piece(*(_each(lambda leaf: leaf.transpose(0, 1), t) for t in (self.inputs, self.targets, self.resets)))


def pieces(pairs: Any, window: int, batch_first: bool) -> Iterator[Piece]:
    """Pieces of so many steps, the last one perhaps shorter."""
    waiting: list[Piece] = []
    for number, pair in enumerate(_listed(pairs)):
        own = _understood(pair, number, batch_first)
        if waiting and own.batch != waiting[0].batch:
            raise _other_batch(number, own.batch, waiting[0].batch)
        waiting.append(own)
        while sum(piece.length for piece in waiting) >= window:
            whole = _joined(waiting)
            yield whole.cut(0, window)
            waiting = [whole.cut(window, whole.length)] if whole.length > window else [whole.cut(0, 0)]
    if waiting and (rest := _joined(waiting)).length:
        yield rest


def _listed(pairs: Any) -> Iterable[Any]:
    """One pair of tensors is a list of one pair."""
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


def _understood(pair: Any, number: int, batch_first: bool) -> Piece:
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
    """One after the other; no resets in one are falses."""
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


def _each(function: Any, tree: Tree) -> Tree:
    return None if tree is None else map_leaves(function, tree)
