"""The plain loop: the meaning of every call, written out in Python, with torch's own autograd.

Slow on purpose. `check_gradients` and the tests compare the engines with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call
from leporello.engine.state_gradient import ALL, Passing, requiring_gradient, with_clipped_gradient
from leporello.loop.batch_axis import batch_in_place
from leporello.loop.cell import Cell
from leporello.loop.clock import time as clock
from leporello.loop.context import plain_context, present_context
from leporello.loop.draws import replay
from leporello.loop.state import Tree, leaves_of, map_leaves
from leporello.loop.step import state_names, take


def plain_loop(
    cell: nn.Module, call: Call, draws: Sequence[Tensor] | None = None, passing: Passing = ALL
) -> tuple[Tree, Tree]:
    """Outputs and final state of a call, step by step.

    draws     the random numbers of each random operator, (length, batch, ...), or (length, ...) where rows share them;
              fresh ones by default
    passing   what each step passes back to the step before; where losses go back in several groups, the loop is run
              once for each group, and each result is that of its group's run
    """
    outputs, final = _once(cell, call, draws, passing.one(0))
    for group in range(1, passing.count):
        other_outputs, other_final = _once(cell, call, draws, passing.one(group))
        outputs = _chosen(passing.masks(group, sequence=True), other_outputs, outputs)
        final = _chosen(passing.masks(group, sequence=False), other_final, final)
    return outputs, batch_in_place(cell, final)


def _once(cell: nn.Module, call: Call, draws: Sequence[Tensor] | None, passing: Passing) -> tuple[Tree, Tree]:
    """The loop for one group of losses."""
    weights = passing.weights
    state, outputs, leaf = call.state, [], cell.feedback_leaf() if isinstance(cell, Cell) else None
    first = map_leaves(lambda value: value[0].detach() if isinstance(value, Tensor) else value, call.inputs)
    for time in range(call.length):
        if weights is not None:
            state = map_leaves(lambda value: _weighted(value, weights[time]), state)  # noqa: B023
        if passing.limit is not None:
            state = map_leaves(lambda value: requiring_gradient(value) if isinstance(value, Tensor) else value, state)
        before = state
        x = map_leaves(lambda value: value[time] if isinstance(value, Tensor) else value, call.inputs)  # noqa: B023
        past = None if call.lengths is None else time >= call.lengths
        if past is not None:
            x = _chosen(past, first, x)
        if call.resets is not None:
            initial = map_leaves(torch.zeros_like, state) if call.initial is None else call.initial
            there = call.resets[time] if past is None else call.resets[time] & ~past  # padding does nothing
            state = _chosen(there, initial, state)
        try:
            with _OneRow() if call.batch == 1 else nullcontext():
                output, state = _step(cell, call, x, state, draws, time)
        except _BatchSqueezed:
            twice = _step(cell, call, x, state, draws, time, copies=2)
            output, state = map_leaves(lambda value: value[:1] if isinstance(value, Tensor) else value, twice)
        if call.targets is not None:
            state = _forced(cell, state, str(leaf), call, time)
        if past is not None:
            output = map_leaves(lambda value: _zeroed(past, value), output)  # noqa: B023
            state = _chosen(past, before, state)
        if passing.limit is not None:
            leaves, spec = pytree.tree_flatten(state)
            state = pytree.tree_unflatten(with_clipped_gradient(leaves, passing.limit, past, None), spec)
        outputs.append(output)
    return _stacked(outputs), state


def _step(
    cell: nn.Module, call: Call, x: Tree, state: Tree, draws: Sequence[Tensor] | None, time: int, copies: int = 1
) -> tuple[Tree, Tree]:
    """Output and next state of one step, with each row as often as `copies` says."""
    numbers = replay(draws, time, copies) if draws is not None else nullcontext()
    number = torch.as_tensor(call.begin + time, device=call.device)
    number = number.repeat(copies) if number.dim() else number
    x, state, context = (_copied(tree, copies) for tree in (x, state, call.context))
    with numbers, clock.at(number), present_context(plain_context(context)):
        return take(cell, x, state)


class _BatchSqueezed(Exception):
    """A step calls `squeeze()` on the values of one row: it would lose the batch, which a Loop keeps."""


class _OneRow(TorchFunctionMode):
    """Stops a step at `squeeze()` without axes. Two equal rows then tell which axis is the batch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.squeeze, torch.squeeze, Tensor.squeeze_) and len(args) + len(kwargs or {}) == 1:
            raise _BatchSqueezed
        return func(*args, **(kwargs or {}))


def _copied(tree: Tree, copies: int) -> Tree:
    """Copies of the tensors, one batch after another: a step may write to its arguments, and means its own."""
    return map_leaves(lambda value: torch.cat([value] * copies) if isinstance(value, Tensor) else value, tree)


def _weighted(value: Any, weights: Tensor) -> Any:
    """The value itself, with its gradient multiplied by the weight of each row."""
    if not isinstance(value, Tensor) or not value.requires_grad or bool((weights == 1).all()):
        return value
    constant = value.detach()
    if not weights.any():
        return constant
    wide = weights.reshape(-1, *[1] * (value.dim() - 1)).to(value.real.dtype)
    return constant + wide * (value - constant)


def _zeroed(condition: Tensor, value: Any) -> Any:
    return _where(condition, torch.zeros_like(value), value) if isinstance(value, Tensor) else value


def _where(condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(condition.reshape(*condition.shape, *[1] * (other.dim() - condition.dim())), one, other)


def _chosen(condition: Tensor, one: Tree, other: Tree) -> Tree:
    """`_where` leaf by leaf; a leaf of `other` that is no tensor stays."""
    pairs = zip(leaves_of(one), leaves_of(other), strict=True)
    chosen = [_where(condition, a, b) if isinstance(b, Tensor) else b for a, b in pairs]
    return pytree.tree_unflatten(chosen, pytree.tree_structure(other))


def _forced(cell: nn.Module, state: Tree, leaf: str, call: Call, time: int) -> Tree:
    """The state with the target in the feedback leaf, where the coin says so."""
    assert call.targets is not None
    leaves, spec = pytree.tree_flatten(state)
    index = state_names(cell, state).index(leaf)
    target = call.targets[time]
    leaves[index] = target if call.coin is None else _where(call.coin[time], target, leaves[index])
    return pytree.tree_unflatten(leaves, spec)


def _stacked(outputs: list[Tree]) -> Tree:
    columns = [leaves_of(output) for output in outputs]
    stacked = [torch.stack(column) if isinstance(column[0], Tensor) else None for column in zip(*columns, strict=True)]
    return pytree.tree_unflatten(stacked, pytree.tree_structure(outputs[0]))
