"""Networks of several layers: `Stack` and `Layers`.

`Stack` runs cells one above the other within each step, `Layers` one whole network after another, as bidirectional nets
need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, features_of
from leporello.loop.construction import Constructed
from leporello.loop.state import Tree, map_leaves
from leporello.loop.step import as_module, take
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.recurrent import shown
from leporello.nets.typing import CallArguments


class Stack(Cell):
    """Several cells as one: the second reads the output of the first, and so on; the output is the last one's.

    cells     from the input upwards
    dropout   probability of dropping each value between two cells, in train()

    The state is the tuple of the cells' states; its leaves are named `0.h`, `1.h`, …

    >>> from leporello.cells import GRU
    >>> output, state = Stack(GRU(3, 4), GRU(4, 4))(torch.zeros(2, 3))
    >>> len(state), output.shape
    (2, torch.Size([2, 4]))
    """

    def __init__(self, *cells: Any, dropout: float = 0.0) -> None:
        super().__init__()
        if not cells:
            raise ArgumentError("a stack needs at least one cell.", tries="lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4))")
        if not 0 <= dropout < 1:
            raise ArgumentError(
                "the argument 'dropout' is no probability.", came=repr(dropout), expected="from 0 to below 1"
            )
        for cell in cells:
            if isinstance(cell, (Bidirectional, Layers)):
                raise ArgumentError(
                    "a stack is one step of each of its cells, and a step cannot read a sequence from its end.",
                    came=type(cell).__name__,
                    expected="lp.Cell",
                    tries="lp.Layers(lp.Bidirectional(...), lp.Recurrent(cell)), which puts networks one after another",
                )
            if not isinstance(cell, Cell):
                raise ArgumentError(
                    "a stack holds cells that declare their state.",
                    came=type(cell).__name__,
                    expected="lp.Cell",
                    tries="derive the cell from lp.Cell",
                )
        self.cells = nn.ModuleList(as_module(cell) for cell in cells)
        self.dropout = dropout
        self.inputs = features_of(cells[0])
        self.outputs = getattr(cells[-1], "outputs", None)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        after = []
        for index, (cell, own) in enumerate(zip(self.cells, state, strict=True)):
            if index and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            x, own = take(cell, x, own)
            after.append(own)
        return x, tuple(after)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        return tuple(cell.initial_state(batch, device=device, dtype=dtype) for cell in self.cells)  # type: ignore[operator]

    def state_names(self) -> list[str]:
        return [f"{index}.{name}" for index, cell in enumerate(self.cells) for name in cell.state_names()]  # type: ignore[operator]

    def feedback_leaf(self) -> str | None:
        """The last cell's output is the stack's, so only its feedback can be forced."""
        leaf = self.cells[-1].feedback_leaf()  # type: ignore[operator]
        return None if leaf is None else f"{len(self.cells) - 1}.{leaf}"


class Layers(Constructed, nn.Module):
    """Networks applied in turn: the second reads all outputs of the first. Cells within one step go into `Stack`.

    nets      modules called like lp.Recurrent
    dropout   probability of dropping each value between two of them, in train()

    >>> import torch
    >>> from leporello.cells import GRU
    >>> from leporello.nets.bidirectional import Bidirectional
    >>> net = Layers(Bidirectional(GRU(3, 4), GRU(3, 4)), Bidirectional(GRU(8, 4), GRU(8, 4)))
    >>> net(torch.zeros(5, 2, 3))[0].shape
    torch.Size([5, 2, 8])
    """

    def __init__(self, *nets: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        if not nets:
            raise ArgumentError("layers need at least one network.", tries="lp.Layers(lp.Recurrent(cell), ...)")
        if not 0 <= dropout < 1:
            raise ArgumentError(
                "the argument 'dropout' is no probability.", came=repr(dropout), expected="from 0 to below 1"
            )
        self.nets = nn.ModuleList(nets)
        self.dropout = dropout

    def _repr_html_(self) -> str:
        return shown(self)

    if TYPE_CHECKING:

        def __call__(
            self, inputs: Tree, state: Tree = None, **arguments: Unpack[CallArguments]
        ) -> tuple[Any, tuple[Any, ...]]: ...

    def forward(self, inputs: Tree, state: Tree = None, **arguments: Any) -> tuple[Tree, Tree]:
        """Outputs of the last and the tuple of all final states; arguments go to each."""
        return self.through(inputs, state, arguments)

    def through(
        self, inputs: Tree, state: Tree, arguments: dict[str, Any], last: Callable[..., tuple[Tree, Tree]] | None = None
    ) -> tuple[Tree, Tree]:
        """A call in which the last network may be called in another way: `last(net, inputs, state, **arguments)`."""
        states = [None] * len(self.nets) if state is None else state
        if len(states) != len(self.nets):
            raise ArgumentError(
                "the argument 'state' has another number of layers.", came=len(states), expected=len(self.nets)
            )
        after = []
        for index, (net, before) in enumerate(zip(self.nets, states, strict=True)):
            if index and self.dropout and self.training:
                inputs = self._dropped(inputs)
            if last is not None and index == len(self.nets) - 1:
                inputs, final = last(net, inputs, before, **arguments)
            else:
                inputs, final = net(inputs, before, **arguments)
            after.append(final)
        return inputs, tuple(after)

    def _dropped(self, tree: Tree) -> Tree:
        if isinstance(tree, PackedSequence):
            return tree._replace(data=nn.functional.dropout(tree.data, self.dropout))
        return map_leaves(lambda leaf: nn.functional.dropout(leaf, self.dropout) if leaf is not None else leaf, tree)

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return tuple(net.initial_state(batch, **options) for net in self.nets)  # type: ignore[operator]
