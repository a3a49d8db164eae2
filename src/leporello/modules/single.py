"""`Single`: one step of a form seen before, where a kernel is all of it and nothing is trained.

An agent or an instrument asks for one step at a time. Whether a call has the form is looked at here, comparison by
comparison: to build a form and look it up costs more. Knows what `Warm` found out; anything else goes the long way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.loop.cell_tensors import reading
from leporello.loop.state import Tree
from leporello.modules.arguments import Call

if TYPE_CHECKING:
    from leporello.modules.warm import Warm


class Single:
    """One form of a single step."""

    def __init__(self, warm: Warm, call: Call, run: Any) -> None:
        (_, sequence), *_ = call.sequences
        self.warm, self.one_step = warm, run
        self.engine, self.gradient = warm.engine, warm.gradient
        self.same, self.values = warm.watch.same, warm.values
        self.features, self.dtype, self.device = sequence.shape[2:], sequence.dtype, call.device
        self.leaves = [(leaf.shape[1:], leaf.dtype) for _, leaf in call.states]
        self.places = warm.plan.plain_places

    @classmethod
    def of(cls, warm: Warm, call: Call) -> Single | None:
        """For a warm call without gradients, if one function does its steps."""
        run = warm.plan.one_step
        return None if run is None else cls(warm, call, run)

    def run(self, x: Any, state: Any) -> tuple[Tree, Tree] | None:
        """Output and next state; None if the call is of another form, or the cell has changed."""
        if type(x) is not Tensor or torch.is_grad_enabled() or torch.is_autocast_enabled(self.device.type):
            return None
        if x.shape[1:] != self.features or x.dtype is not self.dtype or x.device != self.device:
            return None
        batch, warm = len(x), self.warm
        if not batch or type(state) is not warm.form_of_state:
            return None
        leaves = warm.begin(None, batch) if state is None else (state,) if type(state) is Tensor else state
        if leaves is None or len(leaves) != len(self.leaves):
            return None
        for leaf, (shape, dtype) in zip(leaves, self.leaves, strict=True):
            if type(leaf) is not Tensor or leaf.dtype is not dtype or leaf.device != self.device:
                return None
            if not leaf.dim() or leaf.shape[1:] != shape or len(leaf) != batch:
                return None
        with reading:
            if not self.same():
                return None
            values = self.values(x, leaves, 1, batch, None)
        results = self.one_step(batch, *[values[place] for place in self.places])
        return warm.in_trees(results)
