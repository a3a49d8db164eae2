"""The state a call begins with, and the one resets go back to: passed and like the cell's, or made by the cell."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, MissingState, StateMismatch
from leporello.loop.batch_axis import batch_in_front
from leporello.loop.cell import Cell
from leporello.loop.state import Tree, described, leaves_of, same_structure
from leporello.loop.step import place_of, state_names
from leporello.loop.tracing.step_checks import refuse_batchless, refuse_other_forward


def state_before(cell: nn.Module, state: Tree, batch: int, options: dict[str, Any]) -> Tree:
    """The state before the first step: the one that was passed, checked; for None the one that the cell makes.

    options   device and dtype of a state that the cell makes
    """
    passed = state is not None
    state = state if passed else fresh_state(cell, batch, options)
    if passed and isinstance(cell, Cell) and _makes_state(cell):
        return _like_declared(cell, state, fresh_state(cell, batch, options))
    if state is not None and state != ():
        refuse_batchless(cell, "state", list(zip(state_names(cell, state), leaves_of(state), strict=True)), batch)
    return state


def _like_declared(cell: Cell, state: Tree, expected: Tree) -> Tree:
    """The state in the structure the cell declares; raises if it differs in more than floating dtypes."""
    kept = same_structure(state, expected)
    if kept is None:
        raise StateMismatch(
            "the argument 'state' has another structure than the cell's state.",
            cell=place_of(cell),
            came=described(state),
            expected=described(expected),
            tries="pass the state a call returned, or net.initial_state(batch)",
        )
    for name, leaf, wanted in zip(cell.state_names(), leaves_of(kept), leaves_of(expected), strict=True):
        wrong = _unlike(leaf, wanted)
        if wrong is not None:
            raise StateMismatch(
                f"the state '{name}' {wrong}.",
                cell=place_of(cell),
                came=described(leaf),
                expected=described(wanted),
                tries="pass the state a call returned; lp.rows(state, index) takes some rows of it",
            )
    return kept


def _unlike(leaf: Any, wanted: Tensor) -> str | None:
    """What is wrong with a leaf, in words, None for nothing; floating dtypes may differ, as they do under autocast."""
    if not isinstance(leaf, Tensor):
        return "is no tensor"
    if leaf.shape != wanted.shape:
        return "has the wrong shape"
    exact = not (leaf.is_floating_point() or leaf.is_complex())
    return "has the wrong dtype" if exact and leaf.dtype != wanted.dtype else None


def fresh_state(cell: nn.Module, batch: int, options: dict[str, Any]) -> Tree:
    """The initial state that the cell makes.

    options   its device and dtype, as keyword arguments; a cell that is no `lp.Cell` does not get them
    """
    make = getattr(cell, "initial_state", None)
    if make is None:
        refuse_other_forward(cell)
        raise MissingState(
            "this cell declares no initial state.",
            cell=place_of(cell),
            expected="the argument 'state'",
            tries="lp.Recurrent(lp.from_torch(cell)), which begins with zeros"
            if isinstance(cell, nn.RNNCellBase)
            else "net(inputs, state); or derive the cell from lp.Cell, which begins with zeros",
        )
    if not isinstance(cell, Cell):
        return make(batch)
    _refuse_other_maker(type(cell))  # type: ignore[arg-type]
    state = batch_in_front(cell, make(batch, **options))
    names, leaves = cell.state_names(), leaves_of(state)
    if len(names) != len(leaves):
        raise StateMismatch(
            "initial_state gives other leaves than the cell declares.",
            cell=place_of(cell),
            came=described(state),
            expected=", ".join(names) or "none",
            tries="declare every leaf: super().__init__(h=4, c=4)",
        )
    return cell.with_names(state)


@functools.cache
def _refuse_other_maker(kind: type[Cell]) -> None:
    """Raise for a cell class whose `initial_state` takes other arguments than device and dtype."""
    try:
        inspect.signature(kind.initial_state).bind(None, 1, device=None, dtype=None)
    except TypeError:
        raise ArgumentError(
            "initial_state does not take a device and a dtype.",
            cell=kind.__name__,
            came=f"initial_state{inspect.signature(kind.initial_state)}",
            expected="initial_state(self, batch, *, device=None, dtype=None)",
        ) from None


def reset_state(cell: nn.Module, state: Tree, batch: int, options: dict[str, Any]) -> Tree:
    """What resets go back to: the cell's initial state, or the passed one for a cell without; None for zeros."""
    if type(cell).__dict__.get("initial_state") is None and isinstance(cell, Cell):
        plain = type(cell).initial_state is Cell.initial_state and not len(cell.initial)
        if plain:
            return None
    if not _makes_state(cell):
        return state
    leaves, spec = pytree.tree_flatten(fresh_state(cell, batch, options))
    pairs = zip(leaves, leaves_of(state), strict=True)
    return pytree.tree_unflatten([_in_dtype_of(leaf, like) for leaf, like in pairs], spec)


def _in_dtype_of(leaf: Any, like: Any) -> Any:
    """A leaf in the dtype of the call's state: a cell that is not told the dtype makes its own."""
    return leaf.to(like.dtype) if isinstance(leaf, Tensor) and isinstance(like, Tensor) else leaf


def _makes_state(cell: nn.Module) -> bool:
    """Whether the cell makes the state before the first step; otherwise it is passed."""
    return hasattr(cell, "initial_state") and not getattr(cell, "state_is_passed", False)
