"""The cache key of a call: forms (shape, dtype, device) of its tensors, modes, structure, and which rewrites it needs.

Length and batch are not part of it. `signature` is made of arguments that are not checked yet: a call with the
signature of an earlier one needs only those checks that a signature cannot tell. `trace_signature` and
`plan_signature` are made of a checked `Call`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.arguments import Call
from leporello.loop.context import ContextLeaf, FreeAxes, Shared
from leporello.loop.sizes import SMALLEST_LENGTH
from leporello.loop.state import Tree, leaves_of


def signature(
    inputs: Any,
    state: Any,
    lengths: Any,
    resets: Any,
    context: Any,
    engine: str,
    gradient: Hashable,
    targets: Any = None,
    forcing: Any = None,
    one_step: bool = False,
) -> Hashable | None:
    """The cache key of a call with one input tensor; None for inputs or states of another kind.

    targets, forcing   as in a call with feedback: None without
    one_step           the input comes without the length axis
    """
    axes = 1 if one_step else 2
    if type(inputs) is not Tensor or inputs.dim() < axes or inputs.is_meta:
        return None
    if state is not None:
        state = _form(state)
        if state is None:
            return None
    if context is not None:
        context = _form(context)
        if context is None:
            return None
    forced = None
    if targets is not None or forcing is not None:
        forced = _forced(targets, forcing)
        if forced is None:
            return None
    device = inputs.device
    kind = device.type
    return (
        inputs.shape[axes:],
        inputs.dtype,
        inputs.requires_grad,
        device,
        state,
        context,
        forced,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        lengths is None,
        resets is None,
        engine,
        gradient,
    )


def _forced(targets: Any, forcing: Any) -> Hashable | None:
    """The form of targets without their length and batch, and whether a coin decides; None for unusual ones."""
    if type(targets) is not Tensor or targets.dim() < 2:
        return None
    if forcing is None:
        usual, coin = True, False
    elif isinstance(forcing, Tensor):
        usual = coin = forcing.dim() == 2
    else:
        usual, coin = type(forcing) in (int, float) and 0 < forcing <= 1, forcing != 1
    if not usual:
        return None
    return (targets.shape[2:], targets.dtype, targets.requires_grad, targets.device, coin)


def _form(state: Any) -> Hashable | None:
    """The form of a state or context, without the batch; None for what is no tensor and no nested tuples or dicts."""
    if type(state) is Tensor:
        return (state.shape[1:], state.dtype, state.requires_grad, state.device)
    if isinstance(state, Shared):
        tensor = state.tensor
        return (Shared, tensor.shape, tensor.dtype, tensor.requires_grad, tensor.device)
    forms: list[Any] = [type(state)]
    if isinstance(state, dict):
        forms += state
        state = tuple(state.values())
    elif not isinstance(state, tuple):
        return None
    for part in state:
        if type(part) is Tensor:
            forms += (part.shape[1:], part.dtype, part.requires_grad, part.device)
        else:
            form = _form(part)
            if form is None:
                return None
            forms.append(form)
    return tuple(forms)


def trace_signature(call: Call, free: Sequence[FreeAxes] | None = None) -> Hashable:
    """What the trace of a cell depends on beside the cell itself.

    free   for each leaf of the context which axes have a free length; None: only the number of its axes counts
    """
    leaves = [(tuple(map(int, leaf.shape[2:])), leaf.dtype) for _, leaf in call.sequences]
    leaves += [(tuple(map(int, leaf.shape[1:])), leaf.dtype) for _, leaf in call.states]
    lengths = lengths_of(call, free)
    contexts = [(_sizes(leaf, axes, lengths), leaf.tensor.dtype, leaf.shared) for leaf, axes in _leaves(call, free)]
    trees = (structure(call.inputs), structure(call.state), structure(call.context))
    return (tuple(leaves), tuple(contexts), *trees, call.device, autocast_mode(call.device))


def fixed_axes(call: Call) -> list[FreeAxes]:
    """For each leaf of the context that none of its axes has a free length."""
    return [(None,) * (leaf.tensor.dim() - (not leaf.shared)) for leaf in call.contexts]


def too_short(call: Call) -> bool:
    """Whether an axis of the context is shorter than a free length may be."""
    return any(size < SMALLEST_LENGTH for leaf in call.contexts for size in leaf.tensor.shape[not leaf.shared :])


def lengths_of(call: Call, free: Sequence[FreeAxes] | None) -> dict[int, int] | None:
    """The free lengths of a call, by index; None where axes that should have the same differ."""
    lengths: dict[int, int] = {}
    for leaf, axes in _leaves(call, free):
        for size, length in zip(leaf.tensor.shape[not leaf.shared :], axes or (), strict=False):
            if length is not None and lengths.setdefault(length, size) != size:
                return None
    return lengths


def ones_of(call: Call, free: Sequence[FreeAxes]) -> frozenset[int]:
    """The free lengths that are 1 in a call."""
    return frozenset(index for index, size in (lengths_of(call, free) or {}).items() if size == 1)


def _leaves(call: Call, free: Sequence[FreeAxes] | None) -> Iterable[tuple[ContextLeaf, FreeAxes | None]]:
    return zip(call.contexts, free if free is not None else [None] * len(call.contexts), strict=True)


def _sizes(leaf: ContextLeaf, axes: FreeAxes | None, lengths: dict[int, int] | None) -> Hashable:
    """The sizes of a leaf without the batch, with the index of a free length in its place."""
    sizes = leaf.tensor.shape[not leaf.shared :]
    if axes is None:
        return len(sizes)
    pairs = zip(sizes, axes, strict=True)
    return tuple(int(size) if length is None or lengths is None else f"length {length}" for size, length in pairs)


def plan_signature(call: Call, cell: nn.Module) -> Hashable:
    """What a plan depends on beside its trace, gradient method and engine: rewrites, and who requires a gradient."""
    forced = None if call.targets is None else "always" if call.coin is None else "coin"
    restarts = None if call.resets is None else "zeros" if call.initial is None else "passed"
    return (forced, restarts, call.lengths is not None, _gradients(call, cell))


def _gradients(call: Call, cell: nn.Module) -> Hashable:
    """Which leaves require a gradient; None where gradients are switched off."""
    if not torch.is_grad_enabled():
        return None
    return (
        tuple(leaf.requires_grad for _, leaf in call.sequences),
        tuple(leaf.requires_grad for _, leaf in call.states),
        tuple(parameter.requires_grad for parameter in cell.parameters()),
        tuple(leaf.tensor.requires_grad for leaf in call.contexts),
        call.targets is not None and call.targets.requires_grad,
        call.initial is not None and any(leaf.requires_grad for leaf in leaves_of(call.initial)),
    )


def structure(tree: Tree) -> Hashable:
    """The nesting of a tree, with a word for each leaf."""
    if isinstance(tree, dict):
        return ("dict", *((key, structure(value)) for key, value in tree.items()))
    if isinstance(tree, (tuple, list)):
        return (type(tree), *map(structure, tree))
    return None if tree is None else "leaf"


def autocast_mode(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast computes in on a device; None where it is off."""
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)
