"""The plan of a call whose tensors hold no numbers, as they do while torch.compile makes a graph.

A plan depends on forms alone: a like call on small tensors of zeros is planned in its place, in a thread of its own,
where nothing of what torch is tracing is seen. Knows calls and plans; knows nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.arguments import Call
from leporello.call.plan_cache import Planner
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.plan import Plan
from leporello.gradient.method import Method
from leporello.loop.state import Tree, leaves_of, map_leaves

ROWS = 2  # of a stand-in, for a step that does not decide by their number
AXES = {"inputs": 2, "resets": 2, "targets": 2, "coin": 2, "state": 1, "initial": 1, "lengths": 1}


@dataclass(frozen=True)
class Stand:
    """What a plan depends on of a tensor.

    axes    how many of length and batch it has in front
    shape   of the rest
    """

    axes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    needs: bool

    @staticmethod
    def of(tensor: Tensor, axes: int) -> Stand:
        shape = tuple(int(size) for size in tensor.shape[axes:])
        return Stand(axes, shape, tensor.dtype, tensor.device, tensor.requires_grad)

    def made(self, rows: int) -> Tensor:
        lead = (1, rows)[-self.axes :]
        zeros = torch.zeros((*lead, *self.shape), dtype=self.dtype, device=self.device)
        return zeros.requires_grad_() if self.needs else zeros


@dataclass(frozen=True)
class Standing:
    """A call in which stands are in the place of tensors, and the modes it is made in.

    call   the call itself: of its tensors nothing but names is read
    trees  its arguments, with stands
    """

    call: Call
    trees: dict[str, Tree]
    grad: bool
    cast: torch.dtype | None

    @staticmethod
    def of(call: Call) -> Standing:
        kind = call.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        trees = {name: _standing(getattr(call, name), axes) for name, axes in AXES.items()}
        return Standing(call, trees, torch.is_grad_enabled(), cast)

    @property
    def key(self) -> Hashable:
        """What may differ where one form of call is met several times."""
        return (tuple(leaves_of(self.trees)), self.grad, self.cast)

    def plan(self, planner: Planner, cell: nn.Module, gradient: Method, engine: str) -> Plan:
        """The plan for the call; its number of rows is looked at only for a step that decides by it."""

        def planned(rows: int) -> Plan:
            autocast: Any = nullcontext() if self.cast is None else torch.autocast(self.call.device.type, self.cast)
            with torch.set_grad_enabled(self.grad), autocast:
                return planner.plan(cell, self._made(rows), gradient, engine)[0]

        plan = in_fresh_thread(lambda: planned(ROWS))
        if plan.loop.traced_for_one_batch:
            rows = int(self.call.batch)
            plan = in_fresh_thread(lambda: planned(rows))
        return plan

    def _made(self, rows: int) -> Call:
        trees = {
            name: map_leaves(lambda leaf: leaf.made(rows) if isinstance(leaf, Stand) else leaf, tree)
            for name, tree in self.trees.items()
        }
        leaves = [leaf for leaf in leaves_of(trees["inputs"]) if leaf is not None]
        sequences = [(name, leaf) for (name, _), leaf in zip(self.call.sequences, leaves, strict=True)]
        states = [(name, leaf) for (name, _), leaf in zip(self.call.states, leaves_of(trees["state"]), strict=True)]
        whole = replace(self.call, length=1, batch=rows, draws=None, sequences=sequences, states=states)
        return replace(whole, **trees)


def _standing(tree: Tree, axes: int) -> Tree:
    return map_leaves(lambda leaf: Stand.of(leaf, axes) if isinstance(leaf, Tensor) else leaf, tree)
