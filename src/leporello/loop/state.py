"""Trees of tensors: states, inputs and outputs, the names of their leaves, and what users do with a state."""

from __future__ import annotations

import numbers
import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.errors import StateMismatch

Tree = Any  # a tensor, or tuples, lists, dicts and named tuples of trees; () has no leaf


_state_types: dict[tuple[str, ...], type] = {}  # a plain dict: torch.compile cannot trace a functools cache


def state_type(names: tuple[str, ...]) -> type:
    """The named tuple of a state with these leaves; the same names give the same type, and it can be pickled."""
    if names in _state_types:
        return _state_types[names]
    state = namedtuple("State", names)  # type: ignore[misc]
    setattr(state, "__reduce__", lambda self: (_unpickled, (names, tuple(self))))  # noqa: B010
    return _state_types.setdefault(names, state)


def without_unknown_types(tree: Tree) -> Tree:
    """The tree with a plain tuple for each state whose type a process that loads a file of torch.export lacks."""
    if isinstance(tree, tuple) and type(tree) in _state_types.values() and type(tree) is not KNOWN_IN_FILES:
        return tuple(map(without_unknown_types, tree))
    if type(tree) is tuple:
        return tuple(map(without_unknown_types, tree))
    return tree


def _unpickled(names: tuple[str, ...], values: tuple) -> Any:
    return state_type(names)(*values)


torch.serialization.add_safe_globals([_unpickled])  # torch.load reads states with weights_only, its default
KNOWN_IN_FILES = state_type(("h", "c"))  # of an LSTM: every process that imports leporello has it
pytree._register_namedtuple(KNOWN_IN_FILES, serialized_type_name="leporello.State(h, c)")


def state_of(names: Sequence[str], values: Sequence[Any]) -> Tree:
    """The state with these leaves: one leaf as a tensor, several as a named tuple, none as ()."""
    if len(values) == 1:
        return values[0]
    return state_type(tuple(names))(*values) if values else ()


def leaves_of(tree: Tree) -> list[Any]:
    return pytree.tree_leaves(tree)


def leaf_names(tree: Tree, root: str) -> list[str]:
    """The names of a tree's leaves: keys and fields joined by dots; a bare leaf has the root's name; the leaves of a
    tuple have it with their index behind it.

    >>> leaf_names({"a": 1, "b": (2, 3)}, "state")
    ['a', 'b.0', 'b.1']
    >>> leaf_names((1, 2), "state")
    ['state0', 'state1']
    """
    names = []
    for path, _ in pytree.tree_flatten_with_path(tree)[0]:
        keys = [_key(entry) for entry in path]
        if not keys:
            names.append(root)
        elif keys[0].isdigit():
            names.append(".".join([root + keys[0], *keys[1:]]))
        else:
            names.append(".".join(keys))
    return names


def _key(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def map_leaves(function: Callable[[Tensor], Any], state: Tree) -> Tree:
    """The tree with each leaf replaced by the function of it."""
    return pytree.tree_map(function, state)


def detach(state: Tree) -> Tree:
    """The state without its autograd history, as truncated training passes it from one window to the next."""
    return _map_tensors(lambda leaf: leaf.detach(), state)


def rows(state: Tree, index: Any) -> Tree:
    """Some rows of a batch of states: `index` is whatever indexes the first axis (a slice, a mask, row numbers).

    A single row number gives a batch of one.
    """
    index = _batch_index(index)
    return _map_tensors(lambda leaf: leaf[index], state)


def write_rows(state: Tree, index: Any, values: Tree) -> Tree:
    """The batch of states with some rows replaced by others; `state` itself stays as it is. Gradients go to both.

    index    which rows, as for `rows`
    values   a state of so many rows, such as `rows(state, index)`

    >>> write_rows(torch.zeros(3, 2), [0, 2], torch.ones(2, 2)).tolist()
    [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    """
    replaced, given = rows(state, index), values
    values = same_structure(given, replaced)
    fits = (values is None) == (replaced is None) and all(
        _form(old) == _form(new) for old, new in zip(leaves_of(replaced), leaves_of(values), strict=True)
    )
    if not fits:
        raise StateMismatch(
            "the argument 'values' has another form than the rows that it replaces.",
            came=described(given),
            expected=described(replaced),
            tries="a state of the same cell with a row for each of the index",
        )
    return pytree.tree_map(lambda leaf, new: _written(leaf, index, new), state, values)


def _form(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else type(leaf)


def _written(leaf: Any, index: Any, new: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return new
    after = leaf.clone()
    after[_batch_index(index)] = new
    return after


def _batch_index(index: Any) -> Any:
    """An index that keeps the batch axis."""
    single = isinstance(index, numbers.Integral) or (isinstance(index, Tensor) and index.dim() == 0)
    return [int(index)] if single else index


def to(state: Tree, *args: Any, **options: Any) -> Tree:
    """The state on another device or in another dtype; the arguments are those of `torch.Tensor.to`."""
    return _map_tensors(lambda leaf: leaf.to(*args, **options), state)


def _map_tensors(function: Callable[[Tensor], Tensor], state: Tree) -> Tree:
    """Apply a function to the tensors of a tree; other leaves stay, such as None for a state not computed yet."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, state)


def batch_of(tree: Tree) -> int | None:
    """The size of the first axis of the first tensor that has axes; None if there is no such tensor."""
    for leaf in leaves_of(tree):
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]
    return None


def same_structure(given: Tree, wanted: Tree) -> Tree | None:
    """The tree `given` in the structure of `wanted`, None if they do not fit; a plain tuple fits a named one."""
    leaves, spec = pytree.tree_flatten(given)
    wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
    if spec == wanted_spec:
        return given
    if len(leaves) != len(wanted_leaves) or _nesting(given) != _nesting(wanted):
        return None
    return pytree.tree_unflatten(leaves, wanted_spec)


def _nesting(tree: Tree) -> Any:
    """The nesting of a tree, with tuples, lists and named tuples treated alike."""
    if isinstance(tree, dict):
        return {key: _nesting(value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(_nesting(value) for value in tree)
    return None


def described(tree: Tree) -> str:
    """A tree for error messages: `(float32 [3, 4], int64 [3])`."""
    if isinstance(tree, Tensor):
        return f"{dtype_name(tree.dtype)} [{', '.join(map(_size_text, tree.shape))}]"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        named = zip(tree._fields, tree, strict=True)
        return "(" + ", ".join(f"{name}: {described(value)}" for name, value in named) + ")"
    if isinstance(tree, (tuple, list)):
        inside = ", ".join(map(described, tree))
        return f"[{inside}]" if isinstance(tree, list) else f"({inside}{',' if len(tree) == 1 else ''})"
    return type(tree).__name__ if tree is not None else "None"


def _size_text(size: Any) -> str:
    """A size as text, with `batch` for the symbol of a trace."""
    if not hasattr(size, "node"):
        return str(size)
    symbols = {str(symbol): "batch" for symbol in size.node.expr.free_symbols}
    return re.sub(r"\w+", lambda word: symbols.get(word[0], word[0]), str(size.node.expr)).replace("*", " * ")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
