"""Skeletons: trees with a word in the place of each tensor, made of tuples, texts and plain values alone.

torch.compile reads `taken_apart` and `put_together` line by line and keeps a skeleton as a constant; a type is no
constant to it, so a named tuple is spoken of by a name. Knows trees; knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from leporello.call.checks import Looks, chance_in_range, classes_in_range, lengths_in_range
from leporello.engine.graph_operators import library

LEAF = "leaf"


class Kinds:
    """Named tuples, as attributes under their names."""

    known: dict[type, str] = {}


def spoken(skeleton: Any) -> Any:
    """A skeleton of texts and plain values, with names of named tuples."""
    if isinstance(skeleton, tuple):
        return tuple(map(spoken, skeleton))
    if not isinstance(skeleton, type):
        return skeleton
    if skeleton not in Kinds.known:
        name = f"kind{len(Kinds.known)}"
        setattr(Kinds, name, skeleton)
        Kinds.known[skeleton] = name
    return Kinds.known[skeleton]


def taken_apart(tree: Any, tensors: list[Tensor]) -> Any:
    """The tree with a word in the place of each tensor; the tensors go to the list."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return LEAF
    if isinstance(tree, dict):
        return ("dict", tuple([(key, taken_apart(value, tensors)) for key, value in tree.items()]))
    if isinstance(tree, (tuple, list)):
        kind = "list" if isinstance(tree, list) else "tuple" if type(tree) is tuple else type(tree)
        return (kind, tuple([taken_apart(value, tensors) for value in tree]))
    return ("plain", tree)


def put_together(skeleton: Any, tensors: Iterator[Tensor]) -> Any:
    """The tree of a skeleton."""
    if skeleton == LEAF:
        return next(tensors)
    kind, inside = skeleton
    if kind == "plain":
        return inside
    if kind == "dict":
        return {key: put_together(value, tensors) for key, value in inside}
    values = [put_together(value, tensors) for value in inside]
    if kind == "list":
        return values
    return tuple(values) if kind == "tuple" else getattr(Kinds, kind)(*values)


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
