"""The context of a call: tensors that every step reads, passed as `net(inputs, context=...)`.

A step gets it as its third argument, and so does every cell inside of it that has one.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from leporello.errors import ArgumentError
from leporello.loop.loop import Loop
from leporello.loop.port import Role
from leporello.loop.sizes import SMALLEST_LENGTH, Size
from leporello.loop.state import Tree, leaf_names, leaves_of, map_leaves


@dataclass(frozen=True, eq=False)
class Shared:
    """A tensor of the context without a batch axis: all rows read the whole of it."""

    tensor: Tensor


def shared(tensor: Tensor) -> Shared:
    """Says that a tensor of a call's context has no batch axis: every row reads all of it.

    >>> import torch
    >>> def attend(x, state, memory):
    ...     return torch.softmax(x @ memory.T, 1) @ memory, state
    >>> import leporello as lp
    >>> outputs, _ = lp.Recurrent(attend)(torch.randn(7, 2, 4), (), context=lp.shared(torch.randn(9, 4)))
    >>> outputs.shape
    torch.Size([7, 2, 4])
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentError("lp.shared takes a tensor.", came=type(tensor).__name__, tries="torch.as_tensor(values)")
    return Shared(tensor)


class _Present(threading.local):
    """The contexts of the steps that run in this thread, the innermost last, and whether one was read."""

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self.read = False


_present = _Present()


@contextmanager
def present_context(tree: Tree) -> Iterator[_Present]:
    """While the block runs, steps with a third argument get this context."""
    before = _present.read
    _present.trees.append(tree)
    _present.read = False
    try:
        yield _present
    finally:
        _present.trees.pop()
        _present.read = before


def context_argument(signature: inspect.Signature) -> inspect.Parameter | None:
    """The third argument of a step, which gets the context; None for a step without one."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = [parameter for parameter in signature.parameters.values() if parameter.kind in positional]
    return arguments[2] if len(arguments) > 2 else None


def read_context() -> Tree:
    """The context of the step that runs in this thread; None where it has none."""
    if not _present.trees:
        return None
    _present.read = True
    return _present.trees[-1]


@dataclass(frozen=True)
class ContextLeaf:
    """One tensor of a context; `shared` where it has no batch axis."""

    name: str
    tensor: Tensor
    shared: bool


def context_leaves(cell: nn.Module, context: Tree, root: str) -> list[ContextLeaf]:
    """The tensors of a context, with names that differ from those of the cell's parameters; none for None.

    root   the name of a context that is one tensor
    """
    if context is None:
        return []
    taken = {name for name, _ in (*cell.named_parameters(), *cell.named_buffers())}
    pairs = zip(leaf_names(context, root), leaves_of(context), strict=True)
    named = [(f"call.{name}" if name in taken else name, leaf) for name, leaf in pairs if leaf is not None]
    return [ContextLeaf(name, _tensor(leaf), isinstance(leaf, Shared)) for name, leaf in named]


def plain_context(context: Tree) -> Tree:
    """The context as a step gets it: with the tensors in the place of `Shared`."""
    return map_leaves(_tensor, context)


def _tensor(leaf: Any) -> Any:
    return leaf.tensor if isinstance(leaf, Shared) else leaf


def context_of(leaves: Sequence[ContextLeaf], like: Tree) -> Tree:
    """The context with these leaves in the structure of another."""
    remaining = iter(leaves)

    def new(leaf: Any) -> Any:
        if leaf is None:
            return None
        tensor = next(remaining).tensor
        return Shared(tensor) if isinstance(leaf, Shared) else tensor

    return map_leaves(new, like)


# ---- free lengths

FreeAxes = tuple[
    int | None, ...
]  # of a leaf, without the batch: which free length each axis has; None for a fixed size


def free_axes(
    contexts: Sequence[tuple[str, Tensor]], shared: Sequence[bool], held: Collection[int], *, ones: bool
) -> list[FreeAxes]:
    """Which axes of a context may have another length in the next call, as far as sizes tell: a trace decides.

    Axes of equal size have the same length. An axis is fixed if inputs, states or parameters have its size too, or if
    its size is 1; but not the first one behind the batch of what has several axes or no floating numbers: memories and
    their masks.

    shared   which leaves have no batch axis
    held     sizes of inputs, states and parameters
    ones     whether that first axis may be free where its size is 1, too
    """
    lengths: dict[int, int] = {}
    leaves: list[FreeAxes] = []
    for (_, tensor), is_shared in zip(contexts, shared, strict=True):
        sizes = tensor.shape[not is_shared :]
        first = len(sizes) > 1 or not tensor.is_floating_point()
        axes = [
            size >= SMALLEST_LENGTH and (size > 1 or ones) and ((size > 1 and size not in held) or (first and not axis))
            for axis, size in enumerate(sizes)
        ]
        pairs = zip(sizes, axes, strict=True)
        leaves.append(tuple(lengths.setdefault(size, len(lengths)) if free else None for size, free in pairs))
    return leaves


def length_places(leaves: Sequence[FreeAxes]) -> list[tuple[int, int]]:
    """For each free length a leaf and an axis that has it."""
    places: dict[int, tuple[int, int]] = {}
    for leaf, axes in enumerate(leaves):
        for axis, length in enumerate(axes):
            if length is not None:
                places.setdefault(length, (leaf, axis))
    return [places[length] for length in sorted(places)]


def without_lengths(leaves: Sequence[FreeAxes], fixed: Collection[int]) -> list[FreeAxes]:
    """The axes without those lengths; the others are numbered anew."""
    kept = sorted({length for axes in leaves for length in axes if length is not None} - set(fixed))
    return [tuple(kept.index(length) if length in kept else None for length in axes) for axes in leaves]


def axes_of(loop: Loop, contexts: Sequence[ContextLeaf]) -> list[FreeAxes]:
    """Which axes of a context have free lengths in a Loop; those of a leaf that no step reads have none."""
    ports = {port.name: port for port in loop.inputs if port.role is Role.CONTEXT}

    def axes(leaf: ContextLeaf) -> FreeAxes:
        if leaf.name not in ports:
            return (None,) * (leaf.tensor.dim() - (not leaf.shared))
        sizes = ports[leaf.name].shape
        return tuple(size.terms[0][0][0] if isinstance(size, Size) else None for size in sizes)

    return [axes(leaf) for leaf in contexts]
