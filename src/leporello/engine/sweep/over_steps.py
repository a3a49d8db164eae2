"""Pointwise operators of an at-once stage that read a value which is the same at every step.

Such a value has a row for each one of the batch, the others one for each step and row. The operator is run on them as
[steps, batch, ...], where torch broadcasts the value, so that no copy of it is made for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import clean_row_axis, has_rows
from leporello.loop.graph import FASTER_CALLS, TAKES_OUT, arguments, copied, operator_name, placeholders
from leporello.loop.stages import Stage
from leporello.loop.value_classes import ValueClass


class OverSteps:
    """A pointwise operator on operands of which some are the same at every step.

    once   the indices of these
    rows   those of the others with rows
    """

    def __init__(self, node: fx.Node, once: set[int], rows: set[int]) -> None:
        target: Any = node.target
        self.function: Callable[..., Any] = FASTER_CALLS.get(target, target)
        self.once, self.rows = once, rows
        self.__name__ = operator_name(node)
        self.places = self.function in TAKES_OUT

    def __call__(self, *operands: Any, out: Tensor | None = None, **options: Any) -> Any:
        batch = operands[min(self.once)].shape[0]
        wide = [
            value.reshape(-1, batch, *value.shape[1:]) if index in self.rows else value
            for index, value in enumerate(operands)
        ]
        if out is None:
            return self.function(*wide, **options).flatten(0, 1)
        self.function(*wide, out=out.view(-1, batch, *out.shape[1:]), **options)
        return out


def over_steps(stage: Stage, kinds: Mapping[fx.Node, ValueClass]) -> tuple[Stage, frozenset[fx.Node]]:
    """The stage with such operators as `OverSteps`, and the reads that it then takes as they are, [batch, ...].

    kinds   the classes of the reads
    """
    graph, _ = copied(stage.graph)
    places = dict(zip(placeholders(graph)[1:], stage.reads, strict=True))
    once = {place for place, read in places.items() if kinds[read] is ValueClass.TIMELESS}
    once = {place for place in once if place.users and all(_can_run_over_steps(user, once) for user in place.users)}
    for node in dict.fromkeys(user for place in once for user in place.users):
        operands = arguments(node)
        same = {index for index, operand in enumerate(operands) if operand in once}
        rows = {index for index, operand in enumerate(operands) if _has_rows(operand)} - same
        node.target = OverSteps(node, same, rows)
    return replace(stage, graph=graph), frozenset(places[place] for place in once)


def _can_run_over_steps(node: fx.Node, once: set[fx.Node]) -> bool:
    """Whether all operands of an operator broadcast behind an axis of steps, and one of them has such an axis."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) or clean_row_axis(node.meta["val"]) != 0:
        return False
    values = [operand for operand in arguments(node) if isinstance(operand, fx.Node)]
    rows = [value for value in values if _has_rows(value)]
    dim = node.meta["val"].dim()
    fits = all(clean_row_axis(value.meta["val"]) == 0 and value.meta["val"].dim() == dim for value in rows)
    return fits and any(value not in once for value in rows)


def _has_rows(operand: Any) -> bool:
    return (
        isinstance(operand, fx.Node) and isinstance(operand.meta.get("val"), Tensor) and has_rows(operand.meta["val"])
    )
