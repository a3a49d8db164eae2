"""`Layers`: whole networks one after another, each over the whole sequence. For stacks of bidirectional nets."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from leporello.errors import ArgumentError
from leporello.loop.state import Tree, map_leaves


class Layers(nn.Module):
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

    def forward(self, inputs: Tree, state: Tree = None, **arguments: Any) -> tuple[Tree, Tree]:
        """Outputs of the last and the tuple of all final states; arguments go to each."""
        states = [None] * len(self.nets) if state is None else state
        if len(states) != len(self.nets):
            raise ArgumentError(
                "the argument 'state' has another number of layers.", came=len(states), expected=len(self.nets)
            )
        after = []
        for index, (net, before) in enumerate(zip(self.nets, states, strict=True)):
            if index and self.dropout and self.training:
                inputs = self._dropped(inputs)
            inputs, final = net(inputs, before, **arguments)
            after.append(final)
        return inputs, tuple(after)

    def _dropped(self, tree: Tree) -> Tree:
        if isinstance(tree, PackedSequence):
            return tree._replace(data=nn.functional.dropout(tree.data, self.dropout))
        return map_leaves(lambda leaf: nn.functional.dropout(leaf, self.dropout) if leaf is not None else leaf, tree)

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return tuple(net.initial_state(batch, **options) for net in self.nets)  # type: ignore[operator]
