"""The inputs of a call: tensors of one length and one batch, with the features the cell reads.

Inside, sequences are (length, batch, ...). `ArgumentAxes` keeps how the caller writes them, for the text of errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError
from leporello.loop.cell import features_of
from leporello.loop.state import Tree, described, leaf_names, leaves_of, map_leaves
from leporello.loop.step import place_of

_OF_ONE_STEP = {"inputs": "x", "resets": "reset", "targets": "target"}


@dataclass(frozen=True)
class ArgumentAxes:
    """How the caller of a network writes its arguments.

    one_step      without the length axis, as in `net.step` and `lp.fold(cell, x)`
    batch_first   (batch, length, ...) instead of (length, batch, ...)
    """

    one_step: bool = False
    batch_first: bool = False

    def name(self, argument: str) -> str:
        """What the caller calls an argument."""
        return _OF_ONE_STEP.get(argument, argument) if self.one_step else argument

    def shape(self, length: Any, batch: Any, *rest: Any) -> str:
        """A sequence's shape as the caller would write it: `(length, batch, 3)`."""
        lead = (batch,) if self.one_step else (batch, length) if self.batch_first else (length, batch)
        return "(" + ", ".join(map(str, (*lead, *rest))) + ("," if len(lead) + len(rest) == 1 else "") + ")"

    def to_time_first(self, tree: Tree) -> Tree:
        """From the caller's axes to (length, batch, ...)."""
        if self.one_step:
            return map_tensors(lambda leaf: leaf.unsqueeze(0) if leaf.dim() else leaf, tree)
        return map_tensors(time_first, tree) if self.batch_first else tree

    def described(self, tree: Tree) -> str:
        """What came, in the caller's axes."""
        if self.one_step:
            return described(map_tensors(lambda leaf: leaf[0] if leaf.dim() else leaf, tree))
        return described(map_tensors(time_first, tree) if self.batch_first else tree)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """A tree with a function applied to its tensors; other leaves stay."""
    if isinstance(tree, Tensor):
        return function(tree)
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def time_first(value: Any) -> Any:
    """A tensor with length and batch exchanged; anything else as it is."""
    return value.transpose(0, 1) if isinstance(value, Tensor) and value.dim() > 1 else value


def sequences_of(cell: nn.Module, inputs: Tree, axes: ArgumentAxes) -> list[tuple[str, Tensor]]:
    """The tensors of the inputs with their names; raises for anything that is no sequence the cell can read."""
    name = axes.name("inputs")
    features = features_of(cell)
    expected = axes.shape("length", "batch", "..." if features is None else features)
    if features is not None and not isinstance(inputs, Tensor):
        raise ArgumentError(
            f"the argument '{name}' is missing." if inputs is None else f"the argument '{name}' is no tensor.",
            cell=place_of(cell),
            came=described(inputs),
            expected=expected,
            tries=None if inputs is None else _remedy_of_rows(inputs) or "torch.as_tensor(values)",
        )
    named = [
        (leaf_name, leaf)
        for leaf_name, leaf in zip(leaf_names(inputs, "x"), leaves_of(inputs), strict=True)
        if leaf is not None
    ]
    for leaf_name, leaf in named:
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"the argument '{name}' holds what is no tensor.",
                cell=place_of(cell),
                came=type(leaf).__name__ + ("" if leaf_name == "x" else f", at '{leaf_name}'"),
                expected=f"a tensor {expected}, or tuples and dicts of them",
                tries="torch.as_tensor(values)",
            )
        if leaf.dim() < 2 or (features is not None and leaf.dim() != 3):
            raise ArgumentError(
                f"the argument '{name}' has the wrong number of axes.",
                cell=place_of(cell),
                came=axes.described(leaf),
                expected=expected,
                tries=_remedy_of_rows(inputs) or _remedy(leaf, axes),
            )
        if features is not None and leaf.shape[2] != features:
            raise ArgumentError(
                f"the argument '{name}' has the wrong number of features.",
                cell=place_of(cell),
                came=f"{leaf.shape[2]} features: {axes.described(leaf)}",
                expected=f"{features} features: {expected}",
                tries=f"build the cell for {leaf.shape[2]} inputs, or look whether axes changed places",
            )
    return named


def _remedy(leaf: Tensor, axes: ArgumentAxes) -> str | None:
    """What to try where an axis is missing, or is one too many."""
    if axes.one_step:
        return "x.unsqueeze(0) adds a batch axis" if leaf.dim() < 3 else "one step has no length axis: inputs[0]"
    if leaf.dim() != 2:
        return None
    return f"inputs.unsqueeze({0 if axes.batch_first else 1}) adds a batch axis; net.step takes a single step"


def _remedy_of_rows(inputs: Tree) -> str | None:
    """What to try where inputs look like the rows of a batch, each a tensor of its own: (length, ...) of one form."""
    if not isinstance(inputs, (list, tuple)) or len(inputs) < 2 or not all(isinstance(row, Tensor) for row in inputs):
        return None
    if any(row.dim() == 0 or row.shape[1:] != inputs[0].shape[1:] for row in inputs):
        return None
    if all(row.shape == inputs[0].shape for row in inputs):
        return "torch.stack(inputs, 1), if these are the rows of a batch"
    return "torch.nn.utils.rnn.pack_sequence(inputs, enforce_sorted=False), if these are rows of unequal length"


def sizes_of(
    cell: nn.Module, sequences: list[tuple[str, Tensor]], state: Tree, targets: Any, steps: int | None
) -> tuple[int, int]:
    """Length and batch of a call; raises if leaves differ in them, or if one is 0.

    sequences   the tensors of the inputs, time first; empty for a call without inputs
    steps       the argument of the call, None where it is not passed
    """
    if steps is not None and (not isinstance(steps, (int, torch.SymInt)) or isinstance(steps, bool) or steps < 1):
        raise ArgumentError("the argument 'steps' is no length.", came=repr(steps), expected="an integer of at least 1")
    length, batch = _of_inputs(cell, sequences, steps) if sequences else _of_others(cell, state, targets, steps)
    if length == 0:
        raise ArgumentError(
            "the sequence has no steps.", cell=place_of(cell), came="length 0", expected="at least one step"
        )
    if batch == 0:
        raise ArgumentError("the batch is empty.", cell=place_of(cell), came="0 rows", expected="at least one row")
    return length, batch


def _of_inputs(cell: nn.Module, sequences: list[tuple[str, Tensor]], steps: int | None) -> tuple[int, int]:
    name, lead = sequences[0]
    length, batch = lead.shape[:2]
    for other, leaf in sequences[1:]:
        if tuple(leaf.shape[:2]) != (length, batch):
            raise ArgumentError(
                f"the inputs '{name}' and '{other}' differ in length or batch.",
                cell=place_of(cell),
                came=f"length {length} and batch {batch}, length {leaf.shape[0]} and batch {leaf.shape[1]}",
                expected="one length and one batch in all inputs",
                tries=_remedy_of_rows([leaf for _, leaf in sequences]) if name == "x0" else None,  # a list or tuple
            )
    if steps is not None and steps != length:
        raise ArgumentError(
            "the argument 'steps' contradicts the inputs.",
            came=f"steps={steps} and inputs of {length} steps",
            tries="leave out steps=: the inputs have a length of their own",
        )
    return length, batch


def _of_others(cell: nn.Module, state: Tree, targets: Any, steps: int | None) -> tuple[int, int]:
    """Length and batch without inputs: of `steps`, else of the targets; of the state, else of the targets, else 1."""
    lead = next((leaf for leaf in leaves_of(state) if isinstance(leaf, Tensor) and leaf.dim()), None)
    like = targets.shape[:2] if isinstance(targets, Tensor) and targets.dim() > 1 else None
    if steps is None and like is None:
        raise ArgumentError(
            "a call without inputs needs a length.",
            cell=place_of(cell),
            expected="the argument 'steps'",
            tries="net(None, state, steps=10)",
        )
    length = steps if steps is not None else like[0]  # type: ignore[index]
    return length, lead.shape[0] if lead is not None else like[1] if like is not None else 1


def is_floating(leaf: Tensor) -> bool:
    """Whether a tensor can have a gradient."""
    return leaf.is_floating_point() or leaf.is_complex()


def state_options(cell: nn.Module, sequences: list[tuple[str, Tensor]], state: Tree) -> dict[str, Any]:
    """`device` and `dtype` of a fresh state, as a dict.

    The device is that of the inputs, else of the passed state, else of the parameters. The dtype is that of the
    floating inputs, else of the parameters, else None.
    """
    parameter = next((p for p in cell.parameters() if is_floating(p)), None)
    floats = next((leaf for _, leaf in sequences if is_floating(leaf)), None)
    passed = next((leaf for leaf in leaves_of(state) if isinstance(leaf, Tensor)), None)
    lead = sequences[0][1] if sequences else passed if passed is not None else parameter
    dtype = floats.dtype if floats is not None else parameter.dtype if parameter is not None else None
    return {"device": lead.device if lead is not None else torch.get_default_device(), "dtype": dtype}
