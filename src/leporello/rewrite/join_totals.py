"""The rewrite `join_totals`: a sum of sums over rows becomes one sum over rows, of the sum of the values.

A parameter that a step uses several times, as the steps of a solver do, has a gradient of several such sums. A kernel
then adds one value to a total in the place of several values to several totals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import is_view

aten = torch.ops.aten

JOINS = (aten.stack.default, aten.cat.default)


def join_totals(loop: Loop, wanted: Callable[[fx.Node], bool]) -> Loop | None:
    """The Loop with fewer sums over rows; None where there are none to join.

    wanted   of a sum over rows whether it is worth it
    """
    draft = Draft(loop)
    changed = False
    for node in list(draft.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
            continue
        left, right = arguments(node)
        if left is not right and _can_join(draft, left, right, wanted):
            with draft.before(node):
                draft.replace(node, _joined(draft, left, right))
            changed = True
    return draft.close() if changed else None


def _can_join(draft: Draft, left: fx.Node, right: fx.Node, wanted: Callable[[fx.Node], bool]) -> bool:
    """Whether two values that are added are the same views, or stacks, of sums over rows; nothing else reads these."""
    known = is_view(left) or left.target in (*JOINS, aten.sum.dim_IntList)
    if not known or left.target is not right.target or left.kwargs != right.kwargs:
        return False
    if any(len(node.users) > 1 or any(result is node for _, result in draft.outputs) for node in (left, right)):
        return False
    (one, *rest), (other, *others) = arguments(left), arguments(right)
    if rest != others:
        return False
    if left.target in JOINS:
        pairs = list(zip(one, other, strict=False))
        return len(one) == len(other) and all(a is not b and _can_join(draft, a, b, wanted) for a, b in pairs)
    if not _alike(one, other):
        return False
    if is_view(left):
        return _can_join(draft, one, other, wanted)
    return wanted(left) and wanted(right)


def _joined(draft: Draft, left: fx.Node, right: fx.Node) -> fx.Node:
    """The sum of two values for which `_can_join` holds."""
    target: Any = left.target
    (one, *rest), (other, *_) = arguments(left), arguments(right)
    if left.target in JOINS:
        parts = [_joined(draft, a, b) for a, b in zip(one, other, strict=True)]
        return draft.call(target, parts, *rest)
    inner = _joined(draft, one, other) if is_view(left) else draft.call(aten.add.Tensor, one, other)
    return draft.call(target, inner, *rest)


def _alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two values have the same shape and dtype."""
    a, b = one.meta["val"], other.meta["val"]
    return a.dtype == b.dtype and a.dim() == b.dim() and str(a.shape) == str(b.shape)
