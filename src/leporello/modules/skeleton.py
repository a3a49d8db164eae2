"""Skeletons: trees with a word in the place of each tensor, made of tuples, texts and plain values alone.

torch.compile reads `taken_apart` and `put_together` line by line and keeps a skeleton as a constant; a type is no
constant to it, so a named tuple is spoken of by a name. Knows trees; knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

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
