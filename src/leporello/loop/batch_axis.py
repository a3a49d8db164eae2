"""Cells whose states have the batch on another axis than the first, such as (layers, batch, hidden) of torch.nn.GRU.

Inside, the batch is the first axis of every state. `BatchAxis` goes round such a cell; `batch_in_front` and
`batch_in_place` turn the state that a call gets and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, MissingState, StateMismatch
from leporello.loop.cell import Cell, features_of
from leporello.loop.state import Tree, described, leaf_names
from leporello.loop.step import place_of, state_argument, take

Axes = int | Sequence[int] | Mapping[str, int]


class BatchAxis(Cell):
    """A cell that gets states with the batch in front and passes them to a cell that has it elsewhere.

    axes   one for all leaves, one for each, or by name of a leaf: those that are not named have it in front
    """

    def __init__(self, cell: nn.Module, axes: Axes) -> None:
        super().__init__()
        self.cell, self.axes = cell, _checked(axes)
        self.inputs = features_of(cell)
        self.feedback = getattr(cell, "feedback", None)

    def forward(self, x: Any, state: Tree) -> tuple[Any, Tree]:
        output, after = take(self.cell, x, self.turned(state, front=False))
        return output, self.turned(after, front=True)

    def turned(self, state: Tree, *, front: bool) -> Tree:
        """The state with the batch in front, from the cell's own form; or the other way round."""
        leaves, spec = pytree.tree_flatten(state)
        axes = self._axes_of(state, len(leaves))
        for name, leaf, axis in zip(self.names_of(state), leaves, axes, strict=True):
            if isinstance(leaf, Tensor) and not -leaf.dim() <= axis < leaf.dim():
                raise StateMismatch(
                    f"the state '{name}' has no axis {axis}, where the batch is said to be.",
                    cell=place_of(self.cell),
                    came=described(leaf),
                    tries="batch_axis={'h': 1} names the leaves whose batch is not in front",
                )
        turn = (lambda leaf, axis: leaf.movedim(axis, 0)) if front else (lambda leaf, axis: leaf.movedim(0, axis))
        moved = [
            turn(leaf, axis) if isinstance(leaf, Tensor) else leaf for leaf, axis in zip(leaves, axes, strict=True)
        ]
        return pytree.tree_unflatten(moved, spec)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        """In the cell's own form; what a cell declares without saying how it begins has the batch in front."""
        if self.state_is_passed:
            raise MissingState(
                "this cell declares no initial state.",
                cell=place_of(self.cell),
                expected="the argument 'state'",
                tries="net(inputs, state); or derive the cell from lp.Cell, which begins with zeros",
            )
        if not isinstance(self.cell, Cell):
            return self._maker()(batch)
        state = self.cell.initial_state(batch, device=device, dtype=dtype)
        return self.turned(state, front=False) if type(self.cell).initial_state is Cell.initial_state else state

    @property
    def state_is_passed(self) -> bool:
        """Whether the cell does not say what it begins with."""
        return not hasattr(self.cell, "initial_state")

    def state_names(self) -> list[str]:
        if isinstance(self.cell, Cell):
            return self.cell.state_names()
        return self.names_of(None if self.state_is_passed else self._maker()(1))

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf() if isinstance(self.cell, Cell) else None

    def _maker(self) -> Callable[[int], Tree]:
        return self.cell.initial_state  # type: ignore[return-value]

    def names_of(self, state: Tree) -> list[str]:
        """The names of the leaves of a state that is passed."""
        return self.cell.state_names() if isinstance(self.cell, Cell) else leaf_names(state, state_argument(self.cell))

    def _axes_of(self, state: Tree, count: int) -> list[int]:
        """The axis of each leaf."""
        if isinstance(self.axes, int):
            return [self.axes] * count
        names = self.names_of(state)
        if isinstance(self.axes, Mapping):
            unknown = [name for name in self.axes if name not in names]
            axes = [self.axes.get(name, 0) for name in names]
        else:
            unknown, axes = [], list(self.axes)
        if unknown or len(axes) != count:
            raise ArgumentError(
                "the argument 'batch_axis' does not fit the state.",
                cell=place_of(self.cell),
                came=repr(self.axes),
                expected=f"one number, or one for each of {', '.join(names)}",
            )
        return axes


def _checked(axes: Any) -> Axes:
    values = axes.values() if isinstance(axes, Mapping) else axes if isinstance(axes, (tuple, list)) else [axes]
    if not all(isinstance(axis, int) and not isinstance(axis, bool) for axis in values):
        raise ArgumentError(
            "the argument 'batch_axis' is no axis.",
            came=repr(axes),
            expected="a number, such as 1 for (layers, batch, hidden); or one for each leaf of the state",
        )
    return axes


def batch_in_front(cell: nn.Module, state: Tree) -> Tree:
    """A state of the call, with the batch in front."""
    return cell.turned(state, front=True) if isinstance(cell, BatchAxis) and state is not None else state


def batch_in_place(cell: nn.Module, state: Tree) -> Tree:
    """A state with the batch in front, in the form of the call."""
    return cell.turned(state, front=False) if isinstance(cell, BatchAxis) else state
