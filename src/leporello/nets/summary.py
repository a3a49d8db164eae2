"""`Summary`: a network that reads a whole sequence and returns one output, at each row's own end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, features_of
from leporello.loop.state import Tree
from leporello.loop.step import take
from leporello.nets.recurrent import Recurrent
from leporello.view.folded_loop import FoldedLoop


class _Silent(Cell):
    """A cell without its output: only the state matters, so nothing else is computed."""

    cell: Cell

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.inputs = features_of(cell)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return None, take(self.cell, x, state)[1]

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return self.cell.initial_state(batch, **options)

    def state_names(self) -> list[str]:
        return self.cell.state_names()

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf()


class _Concluding(_Silent):
    """A cell whose output is the head's, of each step's next state: what `Summary.fold` traces."""

    def __init__(self, cell: Cell, head: Callable[[Any], Any]) -> None:
        super().__init__(cell)
        self.head = head

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        after = take(self.cell, x, state)[1]
        return self.head(after), after


class Summary(nn.Module):
    """Read the sequence, then `head(state)`: one output per row, at the row's own end. The head runs once.

        _, state = Recurrent(cell)(inputs)
        return head(state), state

    cell      an lp.Cell
    head      a module or function of the final state (a tensor, or the named tuple of the state's leaves)
    options   those of lp.Recurrent

    >>> import torch
    >>> from leporello.cells import RNN
    >>> net = Summary(RNN(3, 4), nn.Linear(4, 2))
    >>> net(torch.zeros(5, 7, 3))[0].shape
    torch.Size([7, 2])
    """

    def __init__(self, cell: Cell, head: Callable[[Any], Any], **options: Any) -> None:
        super().__init__()
        if not isinstance(cell, Cell):
            raise ArgumentError(
                "a summary reads with a cell that declares its state.",
                came=type(cell).__name__,
                expected="lp.Cell",
                tries="derive the cell from lp.Cell",
            )
        self.net = Recurrent(_Silent(cell), **options)
        self.head = head

    def forward(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> tuple[Tree, Tree]:
        """The head's output and the final state; arguments as for `lp.Recurrent`."""
        _, final = self.net(inputs, state, **arguments)
        return self.head(final), final

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return self.net.initial_state(batch, **options)

    def explain(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> str:
        return self.net.explain(inputs, state, **arguments) + "then     the head, once\n"

    def fold(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> FoldedLoop:
        """The Loop of a call with these arguments; its outputs are computed at the last step only."""
        reader = self.net.cell
        assert isinstance(reader, _Silent)
        loop = Recurrent(_Concluding(reader.cell, self.head)).fold(inputs, state, **arguments)
        return loop.replace(last_step_outputs=tuple(port.name for port in loop.outputs if port.kind == "sequence"))
