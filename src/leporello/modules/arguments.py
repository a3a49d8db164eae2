"""The arguments of a call, checked and brought into one form: time first, booleans where the rewrites read them.

Knows the user's words for what is wrong; knows nothing of loops or engines.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, MissingState, StateMismatch
from leporello.loop.cell import Cell
from leporello.loop.state import Tree, described, leaf_names, leaves_of, same_structure
from leporello.loop.step import place_of, state_names


@dataclass
class Call:
    """One call, ready for the rewrites.

    inputs, state      trees; sequences are (length, batch, ...)
    initial            what resets go back to: None for zeros, else a tree like the state
    lengths, resets, targets, coin   None where the call has none; coin None with targets means always forced
    """

    inputs: Tree
    state: Tree
    length: int
    batch: int
    device: torch.device
    lengths: Tensor | None = None
    resets: Tensor | None = None
    initial: Tree = None
    targets: Tensor | None = None
    coin: Tensor | None = None
    draws: Sequence[Tensor] | None = None
    packed: PackedSequence | None = None
    sequences: list[tuple[str, Tensor]] = field(default_factory=list)
    states: list[tuple[str, Tensor]] = field(default_factory=list)


def understood(
    cell: nn.Module,
    inputs: Tree,
    state: Tree,
    *,
    lengths: Any = None,
    resets: Any = None,
    targets: Any = None,
    forcing: Any = None,
    steps: int | None = None,
    draws: Sequence[Tensor] | None = None,
    batch_first: bool = False,
) -> Call:
    """Check a call's arguments and bring them into one form."""
    packed = None
    if isinstance(inputs, PackedSequence):
        packed = inputs
        inputs, lengths = _unpacked(inputs, lengths)
    elif batch_first:
        inputs, targets, resets, forcing = (_swapped(value) for value in (inputs, targets, resets, forcing))
    sequences = _sequences(cell, inputs)
    length, batch = _sizes(cell, sequences, state, targets, steps)
    home = _home(cell, sequences, state)
    state = _state(cell, state, batch, home)
    call = Call(inputs, state, length, batch, home["device"], draws=draws, packed=packed, sequences=sequences)
    call.states = list(zip(state_names(cell, state), leaves_of(state), strict=True)) if state != () else []
    call.lengths = _lengths(lengths, length, batch, call.device)
    call.resets = _booleans("resets", resets, length, batch, call.device)
    if call.resets is not None:
        call.initial = _initial(cell, state, batch, home)
    call.targets, call.coin = _forcing(cell, call, targets, forcing)
    return call


def _swapped(tree: Tree) -> Tree:
    """Batch and time change places."""
    return pytree.tree_map(
        lambda leaf: leaf.transpose(0, 1) if isinstance(leaf, Tensor) and leaf.dim() > 1 else leaf, tree
    )


def _unpacked(inputs: PackedSequence, lengths: Any) -> tuple[Tensor, Tensor]:
    if lengths is not None:
        raise ArgumentError(
            "the argument 'lengths' stands beside a PackedSequence, which has lengths of its own.",
            tries="leave out lengths=",
        )
    return pad_packed_sequence(inputs)


def repacked(outputs: Tree, packed: PackedSequence) -> Tree:
    """Outputs in the packing of the inputs."""

    def pack(leaf: Tensor) -> PackedSequence:
        if packed.sorted_indices is not None:
            leaf = leaf.index_select(1, packed.sorted_indices)
        lengths = (packed.batch_sizes.unsqueeze(0) > torch.arange(leaf.shape[1]).unsqueeze(1)).sum(1)
        data = pack_padded_sequence(leaf, lengths).data
        return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)

    return pytree.tree_map(lambda leaf: pack(leaf) if isinstance(leaf, Tensor) else leaf, outputs)


def _sequences(cell: nn.Module, inputs: Tree) -> list[tuple[str, Tensor]]:
    named = list(zip(leaf_names(inputs, "x"), leaves_of(inputs), strict=True))
    for name, leaf in named:
        if leaf is None:
            continue
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"the input '{name}' is no tensor.",
                cell=place_of(cell),
                came=type(leaf).__name__,
                expected="a tensor (length, batch, ...), or a tree of them",
                tries="torch.as_tensor(values)",
            )
        _refuse_features(cell, name, leaf)
        if leaf.dim() < 2:
            raise ArgumentError(
                f"the input '{name}' has too few axes.",
                cell=place_of(cell),
                came=described(leaf),
                expected="(length, batch, ...)",
                tries="add a batch axis with inputs.unsqueeze(1)",
            )
    return [(name, leaf) for name, leaf in named if leaf is not None]


def _refuse_features(cell: nn.Module, name: str, leaf: Tensor) -> None:
    """Cells that say how many features they read are asked first."""
    wanted = getattr(cell, "inputs", None)
    if not isinstance(cell, Cell) or not isinstance(wanted, int) or not leaf.is_floating_point() or name != "x":
        return
    if leaf.dim() != 3:
        raise ArgumentError(
            "the argument 'inputs' has the wrong number of axes.",
            cell=place_of(cell),
            came=described(leaf),
            expected=f"(length, batch, {wanted})",
            tries="inputs.unsqueeze(1) adds a batch axis; net.step takes a single step" if leaf.dim() == 2 else None,
        )
    if leaf.shape[2] != wanted:
        raise ArgumentError(
            "the argument 'inputs' has the wrong number of features.",
            cell=place_of(cell),
            came=f"{leaf.shape[2]} features: {described(leaf)}",
            expected=f"{wanted} features: (length, batch, {wanted})",
            tries=f"build the cell for {leaf.shape[2]} inputs, or check whether axes changed places (batch_first=True)",
        )


def _sizes(
    cell: nn.Module, sequences: list[tuple[str, Tensor]], state: Tree, targets: Any, steps: int | None
) -> tuple[int, int]:
    """Length and batch, the same in all leaves."""
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise ArgumentError("the argument 'steps' is no length.", came=repr(steps), expected="an integer of at least 1")
    if sequences:
        name, lead = sequences[0]
        length, batch = lead.shape[:2]
        for other, leaf in sequences[1:]:
            if tuple(leaf.shape[:2]) != (length, batch):
                raise ArgumentError(
                    f"the inputs '{name}' and '{other}' differ in length or batch.",
                    came=f"{described(lead)} and {described(leaf)}",
                    expected=f"({length}, {batch}, ...) for both",
                )
        if steps is not None and steps != length:
            raise ArgumentError(
                "the argument 'steps' contradicts the inputs.",
                came=f"{steps} steps and inputs of {length}",
                tries="leave out steps=, the inputs have a length of their own",
            )
    else:
        length = steps if steps is not None else targets.shape[0] if isinstance(targets, Tensor) else None
        if length is None:
            raise ArgumentError(
                "a call without inputs needs a length.",
                cell=place_of(cell),
                expected="the argument 'steps'",
                tries="net(None, state, steps=10)",
            )
        lead = next((leaf for leaf in leaves_of(state) if isinstance(leaf, Tensor) and leaf.dim()), None)
        batch = lead.shape[0] if lead is not None else targets.shape[1] if isinstance(targets, Tensor) else 1
    if length == 0:
        raise ArgumentError("the sequence has no steps.", cell=place_of(cell), came="length 0", expected="at least 1")
    if batch == 0:
        raise ArgumentError("the batch is empty.", cell=place_of(cell), came="batch 0", expected="at least one row")
    return int(length), int(batch)


def _home(cell: nn.Module, sequences: list[tuple[str, Tensor]], state: Tree) -> dict[str, Any]:
    """Device and dtype of a fresh state: those of the inputs, of the parameters where the inputs are integers."""
    parameter = next((p for p in cell.parameters() if p.is_floating_point() or p.is_complex()), None)
    floats = next((leaf for _, leaf in sequences if leaf.is_floating_point() or leaf.is_complex()), None)
    given = next((leaf for leaf in leaves_of(state) if isinstance(leaf, Tensor)), None)
    lead = sequences[0][1] if sequences else given if given is not None else parameter
    dtype = floats.dtype if floats is not None else parameter.dtype if parameter is not None else None
    return {"device": lead.device if lead is not None else torch.device("cpu"), "dtype": dtype}


def _state(cell: nn.Module, state: Tree, batch: int, home: dict[str, Any]) -> Tree:
    if state is None:
        return _fresh(cell, batch, home)
    if isinstance(cell, Cell):
        expected = cell.initial_state(batch, **home)
        kept = same_structure(state, expected)
        if kept is None:
            raise StateMismatch(
                "the argument 'state' has another structure than the cell's state.",
                cell=place_of(cell),
                came=described(state),
                expected=described(expected),
                tries="pass the state a call returned, or net.initial_state(batch)",
            )
        for name, leaf, wanted in zip(cell.state_names(), leaves_of(kept), leaves_of(expected), strict=True):
            if not isinstance(leaf, Tensor) or leaf.shape != wanted.shape:
                raise StateMismatch(
                    f"the state '{name}' has the wrong shape.",
                    cell=place_of(cell),
                    came=described(leaf),
                    expected=described(wanted),
                    tries="pass the state a call returned; lp.rows(state, index) takes some rows of it",
                )
        return kept
    return state


def _fresh(cell: nn.Module, batch: int, home: dict[str, Any]) -> Tree:
    make = getattr(cell, "initial_state", None)
    if make is None:
        raise MissingState(
            "this cell declares no initial state.",
            cell=place_of(cell),
            expected="the argument 'state'",
            tries="net(inputs, state); or derive the cell from lp.Cell, which begins with zeros",
        )
    return make(batch, **home) if isinstance(cell, Cell) else make(batch)


def _initial(cell: nn.Module, state: Tree, batch: int, home: dict[str, Any]) -> Tree:
    """What resets go back to: the cell's initial state, the state handed in for a cell that has none."""
    if type(cell).__dict__.get("initial_state") is None and isinstance(cell, Cell):
        plain = type(cell).initial_state is Cell.initial_state and not len(cell.initial)
        if plain:
            return None
    return _fresh(cell, batch, home) if hasattr(cell, "initial_state") else state


def _lengths(lengths: Any, length: int, batch: int, device: torch.device) -> Tensor | None:
    if lengths is None:
        return None
    given = lengths if isinstance(lengths, Tensor) else torch.as_tensor(lengths)
    if given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.bool:
        raise ArgumentError(
            "the argument 'lengths' holds no integers.",
            came=described(given),
            expected=f"integers ({batch},)",
            tries="lengths.long()",
        )
    if tuple(given.shape) != (batch,):
        raise ArgumentError(
            "the argument 'lengths' has the wrong shape.",
            came=described(given),
            expected=f"({batch},): one length per row",
        )
    if given.device.type == "cpu":
        wrong = (given < 1) | (given > length)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ArgumentError(
                "the argument 'lengths' is out of range.",
                came=f"{int(given[row])} in row {row}",
                expected=f"1 to {length}, the length of the inputs",
            )
    return given.to(device).clamp(1, length)


def _booleans(name: str, value: Any, length: int, batch: int, device: torch.device) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        raise ArgumentError(
            f"the argument '{name}' is not boolean.",
            came=described(value),
            expected=f"bool ({length}, {batch})",
            tries=f"{name}.bool()",
        )
    if tuple(value.shape) != (length, batch):
        raise ArgumentError(
            f"the argument '{name}' has the wrong shape.",
            came=described(value),
            expected=f"bool ({length}, {batch}): (length, batch)",
        )
    return value.to(device)


def _forcing(cell: nn.Module, call: Call, targets: Any, forcing: Any) -> tuple[Tensor | None, Tensor | None]:
    """Targets in the fed-back shape and the coins, or None: always forced."""
    if targets is None:
        if forcing is not None:
            raise ArgumentError(
                "the argument 'forcing' stands without targets.", tries="pass targets=, the true values to feed back"
            )
        return None, None
    leaf = cell.feedback_leaf() if isinstance(cell, Cell) else None
    if leaf is None:
        raise ArgumentError(
            "the argument 'targets' is given, but nothing is fed back in this cell.",
            cell=place_of(cell),
            tries="wrap it in lp.Feedback(cell), or name the state leaf that carries the output: feedback = 'o'",
        )
    fed = dict(call.states)[leaf]
    whole = _target_rows(targets, fed, call)
    if forcing is None or (isinstance(forcing, numbers.Real) and not isinstance(forcing, bool) and forcing == 1):
        return whole, None
    if isinstance(forcing, Tensor) and forcing.dim():
        coin = _booleans("forcing", forcing, call.length, call.batch, call.device)
        return whole, coin
    chance = float(forcing) if isinstance(forcing, numbers.Real) or isinstance(forcing, Tensor) else None
    if chance is None or not 0 <= chance <= 1:
        raise ArgumentError(
            "the argument 'forcing' is no probability.",
            came=repr(forcing),
            expected=f"a number from 0 to 1, or bool ({call.length}, {call.batch})",
        )
    if chance == 0:
        return None, None
    return whole, torch.rand(call.length, call.batch, device=call.device) < chance


def _target_rows(targets: Any, fed: Tensor, call: Call) -> Tensor:
    wanted = (call.length, call.batch, *fed.shape[1:])
    if isinstance(targets, Tensor):
        if tuple(targets.shape) == wanted:
            return targets.to(fed.dtype)
        indices = not (targets.dtype.is_floating_point or targets.dtype.is_complex or targets.dtype == torch.bool)
        if indices and tuple(targets.shape) == wanted[:2] and fed.dim() == 2:
            _refuse_classes(targets, fed.shape[1])
            return nn.functional.one_hot(targets.long(), fed.shape[1]).to(fed.dtype)
    raise ArgumentError(
        "the argument 'targets' has the wrong form.",
        came=described(targets),
        expected=f"{wanted}, or class indices {wanted[:2]}",
    )


def _refuse_classes(targets: Tensor, classes: int) -> None:
    if targets.device.type == "cpu" and bool(((targets < 0) | (targets >= classes)).any()):
        raise ArgumentError(
            "the argument 'targets' holds a class that does not exist.",
            came=f"{int(targets.min())} to {int(targets.max())}",
            expected=f"0 to {classes - 1}",
        )
