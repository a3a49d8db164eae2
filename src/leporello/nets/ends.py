"""What a network has computed at each row's own end, out of the outputs of all its steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from leporello.loop.state import Tree


def ends_of(outputs: Tree, lengths: Any = None, *, batch_first: bool = False) -> Tree:
    """The outputs of each row's last step, (batch, ...).

    outputs   (length, batch, ...), or (batch, length, ...) with `batch_first`; a PackedSequence has lengths of its own
    lengths   (batch,) integers, or None where all rows are as long as the sequence
    """

    def end_of(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return end_at(*pad_packed_sequence(leaf))
        if not isinstance(leaf, Tensor):
            return leaf
        return end_at(leaf.transpose(0, 1) if batch_first else leaf, lengths)

    def end_at(leaf: Tensor, lengths: Any) -> Tensor:
        if lengths is None:
            return leaf[-1]
        last = torch.as_tensor(lengths, device=leaf.device).long() - 1
        return leaf[last, torch.arange(leaf.shape[1], device=leaf.device)]

    return pytree.tree_map(end_of, outputs, is_leaf=lambda leaf: isinstance(leaf, PackedSequence))
