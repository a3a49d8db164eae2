"""Looks at the numbers of arguments as operators: they stand in a graph, and look when it runs.

Knows what `modules/looks.py` looks at; knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leporello.engine.in_graph import library
from leporello.modules.looks import Looks, chance_in_range, classes_in_range, lengths_in_range

OPERATORS: dict[str, Callable[..., Any]] = {
    "lengths_in_range(Tensor lengths, SymInt length) -> Tensor": lengths_in_range,
    "classes_in_range(Tensor targets, int classes, str name, bool one_step) -> Tensor": classes_in_range,
    "chance_in_range(Tensor chance, str shape) -> Tensor": chance_in_range,
}


def _looking(look: Callable[..., Any]) -> Callable[..., Tensor]:
    """A look whose result is a tensor of its own: who reads it keeps the look in the graph."""

    def run(value: Tensor, *rest: Any) -> Tensor:
        look(value, *rest)
        return value.clone()

    return run


def _unseen(value: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(value)


for _schema, _look in OPERATORS.items():
    _name = _schema.partition("(")[0]
    library.define(_schema)
    library.impl(_name, _looking(_look), "CompositeExplicitAutograd")
    torch.library.register_fake(f"leporello::{_name}", _unseen, lib=library)


def _chance(forcing: Any, shape: str) -> Any:
    """A number that the graph holds is looked at now."""
    if not isinstance(forcing, Tensor):
        return chance_in_range(forcing, shape)
    return torch.ops.leporello.chance_in_range(forcing, shape)


IN_GRAPH = Looks(torch.ops.leporello.lengths_in_range, torch.ops.leporello.classes_in_range, _chance)
