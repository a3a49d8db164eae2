"""The arguments of a call, checked and brought into one form: time first, booleans where the rewrites read them.

Knows the user's words for what is wrong; knows nothing of loops or engines.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, MissingState, StateMismatch
from leporello.loop.cell import Cell, features_of
from leporello.loop.refusals import refuse_batchless, refuse_devices
from leporello.loop.state import Tree, described, leaf_names, leaves_of, same_structure
from leporello.loop.step import place_of, state_names
from leporello.modules.timed import checked_coin, checked_lengths, checked_mask, checked_targets
from leporello.modules.words import Words


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
    one_step: bool = False,
) -> Call:
    """Check a call's arguments and bring them into one form.

    one_step   the arguments come without the length axis
    """
    words = Words(one_step, batch_first)
    packed = inputs if isinstance(inputs, PackedSequence) and not one_step else None
    targets, resets, forcing = (words.taken(value) for value in (targets, resets, forcing))
    if packed is not None:
        inputs, lengths = _unpacked(packed, lengths)
    else:
        inputs = words.taken(inputs)
    draws = words.taken(draws) if one_step else draws
    sequences = _sequences(cell, inputs, Words() if packed is not None else words)
    length, batch = _sizes(cell, sequences, state, targets, 1 if one_step else steps)
    home = _home(cell, sequences, state)
    state = _state(cell, state, batch, home)
    call = Call(inputs, state, length, batch, home["device"], draws=draws, packed=packed, sequences=sequences)
    call.states = list(zip(state_names(cell, state), leaves_of(state), strict=True)) if state != () else []
    refuse_devices(cell, sequences, (), call.states)
    call.lengths = checked_lengths(lengths, length, batch, call.device)
    call.resets = checked_mask("resets", resets, length, batch, call.device, words)
    if call.resets is not None:
        call.initial = _initial(cell, state, batch, home)
    call.targets, call.coin = _forcing(cell, call, targets, forcing, words)
    return call


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


def _sequences(cell: nn.Module, inputs: Tree, words: Words) -> list[tuple[str, Tensor]]:
    name = words.name("inputs")
    features = features_of(cell)
    expected = words.shape("length", "batch", "..." if features is None else features)
    if features is not None and not isinstance(inputs, Tensor):
        raise ArgumentError(
            f"the argument '{name}' is missing." if inputs is None else f"the argument '{name}' is no tensor.",
            cell=place_of(cell),
            came=described(inputs),
            expected=expected,
            tries=None if inputs is None else "torch.as_tensor(values)",
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
                came=words.came(leaf),
                expected=expected,
                tries=_remedy(leaf, words),
            )
        if features is not None and leaf.shape[2] != features:
            raise ArgumentError(
                f"the argument '{name}' has the wrong number of features.",
                cell=place_of(cell),
                came=f"{leaf.shape[2]} features: {words.came(leaf)}",
                expected=f"{features} features: {expected}",
                tries=f"build the cell for {leaf.shape[2]} inputs, or look whether axes changed places",
            )
    return named


def _remedy(leaf: Tensor, words: Words) -> str | None:
    """Where an axis is missing, or is one too many."""
    if words.one_step:
        return "x.unsqueeze(0) adds a batch axis" if leaf.dim() < 3 else "one step has no length axis: inputs[0]"
    if leaf.dim() != 2:
        return None
    return f"inputs.unsqueeze({0 if words.batch_first else 1}) adds a batch axis; net.step takes a single step"


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
                    cell=place_of(cell),
                    came=f"length {length} and batch {batch}, length {leaf.shape[0]} and batch {leaf.shape[1]}",
                    expected="one length and one batch in all inputs",
                )
        if steps is not None and steps != length:
            raise ArgumentError(
                "the argument 'steps' contradicts the inputs.",
                came=f"steps={steps} and inputs of {length} steps",
                tries="leave out steps=: the inputs have a length of their own",
            )
    else:
        length = (
            steps if steps is not None else targets.shape[0] if isinstance(targets, Tensor) and targets.dim() else None
        )
        if length is None:
            raise ArgumentError(
                "a call without inputs needs a length.",
                cell=place_of(cell),
                expected="the argument 'steps'",
                tries="net(None, state, steps=10)",
            )
        lead = next((leaf for leaf in leaves_of(state) if isinstance(leaf, Tensor) and leaf.dim()), None)
        alike = isinstance(targets, Tensor) and targets.dim() > 1
        batch = lead.shape[0] if lead is not None else targets.shape[1] if alike else 1
    if length == 0:
        raise ArgumentError(
            "the sequence has no steps.", cell=place_of(cell), came="length 0", expected="at least one step"
        )
    if batch == 0:
        raise ArgumentError("the batch is empty.", cell=place_of(cell), came="0 rows", expected="at least one row")
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
    """The state before the first step, with a row for each row of the batch."""
    given = state is not None
    state = state if given else _fresh(cell, batch, home)
    if given and isinstance(cell, Cell):
        return _like_declared(cell, state, _fresh(cell, batch, home))
    if state is not None and state != ():
        refuse_batchless(cell, "state", list(zip(state_names(cell, state), leaves_of(state), strict=True)), batch)
    return state


def _like_declared(cell: Cell, state: Tree, expected: Tree) -> Tree:
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
        wrong = _unlike(leaf, wanted)
        if wrong is not None:
            raise StateMismatch(
                f"the state '{name}' {wrong}.",
                cell=place_of(cell),
                came=described(leaf),
                expected=described(wanted),
                tries="pass the state a call returned; lp.rows(state, index) takes some rows of it",
            )
    return kept


def _unlike(leaf: Any, wanted: Tensor) -> str | None:
    """What is wrong with a leaf; floating dtypes may differ, as they do under autocast."""
    if not isinstance(leaf, Tensor):
        return "is no tensor"
    if leaf.shape != wanted.shape:
        return "has the wrong shape"
    exact = not (leaf.is_floating_point() or leaf.is_complex())
    return "has the wrong dtype" if exact and leaf.dtype != wanted.dtype else None


def _fresh(cell: nn.Module, batch: int, home: dict[str, Any]) -> Tree:
    make = getattr(cell, "initial_state", None)
    if make is None:
        raise MissingState(
            "this cell declares no initial state.",
            cell=place_of(cell),
            expected="the argument 'state'",
            tries="net(inputs, state); or derive the cell from lp.Cell, which begins with zeros",
        )
    if not isinstance(cell, Cell):
        return make(batch)
    _refuse_other_maker(type(cell))
    state = make(batch, **home)
    names, leaves = cell.state_names(), leaves_of(state)
    if len(names) != len(leaves):
        raise StateMismatch(
            "initial_state gives other leaves than the cell declares.",
            cell=place_of(cell),
            came=described(state),
            expected=", ".join(names) or "none",
            tries="declare every leaf: super().__init__(h=4, c=4)",
        )
    return state


@functools.cache
def _refuse_other_maker(kind: type[Cell]) -> None:
    try:
        inspect.signature(kind.initial_state).bind(None, 1, device=None, dtype=None)
    except TypeError:
        raise ArgumentError(
            "initial_state does not take a device and a dtype.",
            cell=kind.__name__,
            came=f"initial_state{inspect.signature(kind.initial_state)}",
            expected="initial_state(self, batch, *, device=None, dtype=None)",
        ) from None


def _initial(cell: nn.Module, state: Tree, batch: int, home: dict[str, Any]) -> Tree:
    """What resets go back to: the cell's initial state, the state handed in for a cell that has none."""
    if type(cell).__dict__.get("initial_state") is None and isinstance(cell, Cell):
        plain = type(cell).initial_state is Cell.initial_state and not len(cell.initial)
        if plain:
            return None
    return _fresh(cell, batch, home) if hasattr(cell, "initial_state") else state


def _forcing(
    cell: nn.Module, call: Call, targets: Any, forcing: Any, words: Words
) -> tuple[Tensor | None, Tensor | None]:
    """Targets in the fed-back shape and the coins, or None: always forced."""
    name = words.name("targets")
    if targets is None:
        if forcing is not None:
            raise ArgumentError(
                f"the argument 'forcing' stands without {name}.", tries=f"pass {name}=, the true values to feed back"
            )
        return None, None
    leaf = cell.feedback_leaf() if isinstance(cell, Cell) else None
    if leaf is None:
        raise ArgumentError(
            f"the argument '{name}' is given, but this cell feeds nothing back.",
            cell=place_of(cell),
            expected="a cell whose feedback names the state leaf that carries the output",
            tries='feedback = "o" in the class; or lp.Feedback(cell), whose cell reads [x, fed]',
        )
    whole = checked_targets(targets, dict(call.states)[leaf], call.length, call.batch, words)
    coin = checked_coin(1 if forcing is None else forcing, call.length, call.batch, call.device, words)
    if coin is False:
        return None, None
    return whole, None if coin is True else coin
