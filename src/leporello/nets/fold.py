"""`fold`: the Loop of a cell, or of a call of one of our modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from leporello.call.arguments import checked_call
from leporello.errors import ArgumentError
from leporello.loop.state import Tree
from leporello.loop.step import as_module
from leporello.loop.tracing.trace import trace
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers
from leporello.nets.summary import Summary
from leporello.rewrite.add_loss import with_loss
from leporello.view.folded_loop import FoldedLoop


def fold(
    cell: Any,
    x: Tree = None,
    state: Tree = None,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    target: Tree = None,
    context: Tree = None,
    **arguments: Any,
) -> FoldedLoop:
    """The graph of one step with its delays.

    cell       a cell with the input `x` of one step, (batch, ...); or one of our modules with the arguments of its call
    state      the state of one step; by default the cell's initial state
    context    tensors that every step reads, as its third argument
    loss       loss(output, target) -> a loss per row or a scalar: adds L and y to the loop
    target     an example of y, one step's target; by default like the output, or class indices for nll_loss

    >>> from leporello.cells import Elman
    >>> loop = fold(Elman(3, 4, 2), torch.zeros(1, 3))
    >>> sorted(loop.parameters)
    ['U', 'V', 'W', 'b', 'c']
    """
    if isinstance(cell, (Bidirectional, Layers)):
        raise ArgumentError(
            f"{type(cell).__name__} is several loops.",
            tries="fold its parts, net.ahead and net.back; net.fold(inputs) draws both"
            if isinstance(cell, Bidirectional)
            else "fold its parts: net.nets[0]",
        )
    if isinstance(cell, (Recurrent, Summary)):
        loop = cell.fold(x, state, context=context, **arguments)
    else:
        loop = _folded_cell(as_module(cell), x, state, context, **arguments)
    return loop if loss is None else FoldedLoop.of(with_loss(loop, loss, target))


def _folded_cell(cell: Any, x: Tree, state: Tree, context: Tree, **arguments: Any) -> FoldedLoop:
    if arguments:
        raise ArgumentError(
            f"folding a cell takes no argument '{next(iter(arguments))}'.",
            tries="fold the module: lp.fold(lp.Recurrent(cell), inputs, ...)",
        )
    call = checked_call(cell, x, state, context=context, one_step=True)
    return FoldedLoop.of(trace(cell, x, call.state, context))
