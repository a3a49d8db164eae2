"""Is it one step? What a cell is called with, and how to tell a whole sequence from the input of one step.

Knows shapes; knows nothing of what a cell computes.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from leporello.errors import ArgumentError, NotOneStep
from leporello.loop.state import batch_of, described, leaves_of


def features_of(cell: nn.Module) -> int | None:
    """How many features a built-in cell reads; None for a cell of one's own, whose `inputs` may mean anything."""
    inputs = getattr(cell, "inputs", None)
    return inputs if isinstance(inputs, int) and _is_ours(type(cell)) else None  # type: ignore[arg-type]


@functools.cache
def _is_ours(kind: type) -> bool:
    return any(base.__module__.startswith(("leporello.cells.", "leporello.nets.")) for base in kind.__mro__)


def refuse_row(cell: nn.Module, x: Any, state: Any) -> None:
    """A built-in cell reads one step: [batch, features]."""
    features = features_of(cell)
    if features is None:
        return
    expected = f"one step: [batch, {features}]"
    if not isinstance(x, Tensor):
        if isinstance(x, PackedSequence):
            raise not_one_step(cell, x)
        raise ArgumentError(
            f"{type(cell).__name__} reads one tensor.",
            came=described(x),
            expected=expected,
            tries="torch.as_tensor(values)",
        )
    if x.dim() > 2:
        raise not_one_step(cell, x)
    if x.dim() == 0 or (x.dim() == 1 and state is None):  # with a state to match, one row may come without its batch
        raise ArgumentError(
            f"the input of {type(cell).__name__} has too few axes.",
            came=described(x),
            expected=expected,
            tries="x.unsqueeze(0) adds a batch axis",
        )
    if x.shape[-1] != features:
        raise ArgumentError(
            f"the input of {type(cell).__name__} has the wrong number of features.",
            came=described(x),
            expected=expected,
            tries=f"build the cell for {x.shape[-1]} inputs",
        )


def may_be_sequence(x: Any, state: Any) -> bool:
    """Whether the input has an axis more than one step's would have: more than any state leaf."""
    lead = x if isinstance(x, Tensor) else next((leaf for leaf in leaves_of(x) if isinstance(leaf, Tensor)), None)
    if lead is None:
        return False
    axes = lead.dim() + (not (lead.is_floating_point() or lead.is_complex()))  # classes stand for rows of features
    return isinstance(x, PackedSequence) or (
        axes > 2 and axes > max([0, *(leaf.dim() for leaf in leaves_of(state) if isinstance(leaf, Tensor))])
    )


def refuse_sequence(cell: nn.Module, x: Any, state: Any) -> None:
    """A sequence has the batch on its second axis: where the state's batch stands there and not in front, say so."""
    lead = next(leaf for leaf in leaves_of(x) if isinstance(leaf, Tensor))
    batch = batch_of(state)
    if isinstance(x, PackedSequence) or (batch is not None and lead.shape[0] != batch and lead.shape[1] == batch):
        raise not_one_step(cell, x)


def grown(result: Any, state: Any) -> bool:
    """Whether a leaf of the next state has more axes than it had."""
    if not isinstance(result, tuple) or len(result) != 2:
        return False
    pairs = zip(leaves_of(result[1]), leaves_of(state), strict=False)
    return any(isinstance(new, Tensor) and isinstance(old, Tensor) and new.dim() > old.dim() for new, old in pairs)


def not_one_step(cell: nn.Module, x: Any) -> NotOneStep:
    came = "a PackedSequence" if isinstance(x, PackedSequence) else f"an input {described(x)}"
    return NotOneStep(
        f"{type(cell).__name__} was called with a whole sequence; this is one step.",
        came=came,
        expected=f"the input of one step, [batch, {features_of(cell) or 'features'}]",
        tries="wrap it in lp.Recurrent(cell) and call that with the sequence",
    )
