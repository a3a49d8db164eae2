"""`stand_in`: a like call on zeros, for planning one whose tensors hold no values, or are wrapped by torch.func.

A plan depends on shapes, dtypes and modes alone. It is made in a fresh thread, outside of the tracing modes and
transforms that the call runs under.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from leporello.call.arguments import Call
from leporello.loop.context import Shared, plain_context
from leporello.loop.state import Tree, leaves_of, map_leaves

STAND_IN_ROWS = 2  # for a step that does not decide by their number
AXES = {"inputs": 2, "resets": 2, "targets": 2, "coin": 2, "state": 1, "initial": 1, "lengths": 1}


def _requires_grad(leaf: Tensor) -> bool:
    return leaf.requires_grad


def stand_in(call: Call, requires_grad: Callable[[Tensor], bool] = _requires_grad) -> Callable[[int], Call]:
    """A function from a number of rows to a like call of one step, whose tensors are zeros.

    requires_grad   whether the zeros of a tensor require a gradient
    """

    def form(leaf: Tensor, axes: int) -> Callable[[int], Tensor]:
        shape = tuple(int(size) for size in leaf.shape[axes:])
        return partial(_zeros, axes, shape, leaf.dtype, leaf.device, requires_grad(leaf))

    def context_form(leaf: Any) -> Any:
        if not isinstance(leaf, Shared):
            return form(leaf, 1) if isinstance(leaf, Tensor) else leaf
        whole = form(leaf.tensor, 0)
        return lambda rows: Shared(whole(rows))

    def forms(tree: Tree, axes: int) -> Tree:
        return map_leaves(lambda leaf: form(leaf, axes) if isinstance(leaf, Tensor) else leaf, tree)

    trees = {name: forms(getattr(call, name), axes) for name, axes in AXES.items()}
    trees["context"] = map_leaves(context_form, call.context)

    def made(rows: int) -> Call:
        zeros = {name: map_leaves(lambda leaf: leaf(rows) if callable(leaf) else leaf, t) for name, t in trees.items()}
        leaves = [leaf for leaf in leaves_of(zeros["inputs"]) if leaf is not None]
        sequences = [(name, leaf) for (name, _), leaf in zip(call.sequences, leaves, strict=True)]
        states = [(name, leaf) for (name, _), leaf in zip(call.states, leaves_of(zeros["state"]), strict=True)]
        tensors = [leaf for leaf in leaves_of(plain_context(zeros["context"])) if leaf is not None]
        contexts = [replace(leaf, tensor=zero) for leaf, zero in zip(call.contexts, tensors, strict=True)]
        zeros |= {"sequences": sequences, "states": states, "contexts": contexts}
        return replace(call, length=1, batch=rows, draws=None, begin=0, **zeros)

    return made


def _zeros(
    axes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, requires_grad: bool, rows: int
) -> Tensor:
    """Zeros of one step: (1, rows, *shape) where `axes` is 2, (rows, *shape) where it is 1, shape where it is 0."""
    zeros = torch.zeros((*(1, rows)[2 - axes :], *shape), dtype=dtype, device=device)
    return zeros.requires_grad_() if requires_grad else zeros
