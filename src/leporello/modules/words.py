"""`Words`: how the caller of a network writes its arguments, so that an error speaks of what was written.

Inside, sequences are (length, batch, ...) whatever the caller wrote. Knows the three ways of writing; knows no rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.loop.state import Tree, described

_OF_ONE_STEP = {"inputs": "x", "resets": "reset", "targets": "target"}


@dataclass(frozen=True)
class Words:
    """The caller's way of writing.

    one_step      without the length axis, as in `net.step` and `lp.fold(cell, x)`
    batch_first   (batch, length, ...) instead of (length, batch, ...)
    """

    one_step: bool = False
    batch_first: bool = False

    def name(self, argument: str) -> str:
        """What the caller calls an argument."""
        return _OF_ONE_STEP.get(argument, argument) if self.one_step else argument

    def shape(self, length: Any, batch: Any, *rest: Any) -> str:
        """A sequence's shape as the caller would write it: `(length, batch, 3)`."""
        lead = (batch,) if self.one_step else (batch, length) if self.batch_first else (length, batch)
        return "(" + ", ".join(map(str, (*lead, *rest))) + ("," if len(lead) + len(rest) == 1 else "") + ")"

    def taken(self, tree: Tree) -> Tree:
        """From the caller's axes to (length, batch, ...)."""
        if self.one_step:
            return _mapped(tree, lambda leaf: leaf.unsqueeze(0) if leaf.dim() else leaf)
        return _mapped(tree, _swapped) if self.batch_first else tree

    def came(self, tree: Tree) -> str:
        """What came, in the caller's axes."""
        if self.one_step:
            return described(_mapped(tree, lambda leaf: leaf[0] if leaf.dim() else leaf))
        return described(_mapped(tree, _swapped) if self.batch_first else tree)


def _mapped(tree: Tree, function: Any) -> Tree:
    return pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _swapped(leaf: Tensor) -> Tensor:
    return leaf.transpose(0, 1) if leaf.dim() > 1 else leaf
