"""Arguments and results of a call inside a graph of torch.compile, which holds tensors and constants alone.

A tree is split into its tensors and a skeleton: the tree with a word in the place of each tensor. torch.compile reads
`flatten` and `unflatten` line by line and keeps a skeleton as a constant. A type is no constant to it, so a skeleton
refers to a named tuple by a name.

The range checks of `checks.py` become operators, which run when the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from leporello.call.checks import RangeChecks, classes_in_range, lengths_in_range, probability_in_range
from leporello.engine.compiled_sweeps import library
from leporello.loop.context import Shared

LEAF = "leaf"


class NamedTuples:
    """Types of named tuples, as attributes under names that `constant` gives them.

    names   the name of each type
    """

    names: dict[type, str] = {}


def constant(skeleton: Any) -> Any:
    """A skeleton with names in the place of types, so that it is a constant; new types are added to `NamedTuples`."""
    if isinstance(skeleton, tuple):
        return tuple(map(constant, skeleton))
    if not isinstance(skeleton, type):
        return skeleton
    if skeleton not in NamedTuples.names:
        name = f"type{len(NamedTuples.names)}"
        setattr(NamedTuples, name, skeleton)
        NamedTuples.names[skeleton] = name
    return NamedTuples.names[skeleton]


def flatten(tree: Any, tensors: list[Tensor]) -> Any:
    """The skeleton of a tree; its tensors are appended to the list."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return LEAF
    if isinstance(tree, Shared):
        return ("shared", flatten(tree.tensor, tensors))
    if isinstance(tree, dict):
        return ("dict", tuple([(key, flatten(value, tensors)) for key, value in tree.items()]))
    if isinstance(tree, (tuple, list)):
        kind = "list" if isinstance(tree, list) else "tuple" if type(tree) is tuple else type(tree)
        return (kind, tuple([flatten(value, tensors) for value in tree]))
    return ("plain", tree)


def unflatten(skeleton: Any, tensors: Iterator[Tensor]) -> Any:
    """The tree of a skeleton as `constant` gives it; its tensors are taken from the iterator, in order."""
    if skeleton == LEAF:
        return next(tensors)
    kind, inside = skeleton
    if kind == "plain":
        return inside
    if kind == "shared":
        return Shared(unflatten(inside, tensors))
    if kind == "dict":
        return {key: unflatten(value, tensors) for key, value in inside}
    values = [unflatten(value, tensors) for value in inside]
    if kind == "list":
        return values
    return tuple(values) if kind == "tuple" else getattr(NamedTuples, kind)(*values)


# ---- range checks as operators

CHECK_OPERATORS: dict[str, Callable[..., Any]] = {
    "lengths_in_range(Tensor lengths, SymInt length) -> Tensor": lengths_in_range,
    "classes_in_range(Tensor targets, int classes, str name, bool one_step) -> Tensor": classes_in_range,
    "probability_in_range(Tensor probability, str shape) -> Tensor": probability_in_range,
}


def _copying(check: Callable[..., Any]) -> Callable[..., Tensor]:
    """A check whose result is a new tensor: what reads it keeps the check in the graph."""

    def run(value: Tensor, *options: Any) -> Tensor:
        check(value, *options)
        return value.clone()

    return run


def _fake(value: Tensor, *options: Any) -> Tensor:
    return torch.empty_like(value)


for _schema, _check in CHECK_OPERATORS.items():
    _name = _schema.partition("(")[0]
    library.define(_schema)
    library.impl(_name, _copying(_check), "CompositeExplicitAutograd")
    torch.library.register_fake(f"leporello::{_name}", _fake, lib=library)


def _probability(forcing: Any, shape: str) -> Any:
    """`probability_in_range` as an operator; a number, which is a constant of the graph, is checked at once."""
    if not isinstance(forcing, Tensor):
        return probability_in_range(forcing, shape)
    return torch.ops.leporello.probability_in_range(forcing, shape)


IN_GRAPH = RangeChecks(torch.ops.leporello.lengths_in_range, torch.ops.leporello.classes_in_range, _probability)
