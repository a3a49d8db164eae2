"""The arguments of a call, checked and brought into one form: time first, booleans where the rewrites read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from leporello.call.checks import (
    EAGER,
    RangeChecks,
    checked_coin,
    checked_context,
    checked_lengths,
    checked_mask,
    checked_targets,
    checked_time,
)
from leporello.call.initial_state import reset_state, state_before
from leporello.call.inputs import ArgumentAxes, sequences_of, sizes_of, state_options
from leporello.errors import ArgumentError
from leporello.loop.batch_axis import batch_in_front
from leporello.loop.cell import Cell
from leporello.loop.context import ContextLeaf
from leporello.loop.state import Tree, leaves_of
from leporello.loop.step import place_of, state_names
from leporello.loop.tracing.cell_tensors import under_cell_lock
from leporello.loop.tracing.step_checks import refuse_devices


@dataclass
class Call:
    """One call, checked, with time first.

    inputs, state      trees; sequences are (length, batch, ...)
    initial            what resets go back to: None for zeros, else a tree like the state
    lengths, resets, targets, coin   None where the call has none; coin None with targets means always forced
    draws              random numbers as the user passed them; None for fresh ones
    one_step           whether they come without the length axis
    packed             the inputs as they were passed, if as a PackedSequence
    times              the indices of the steps (length, 1), where they are known already
    begin              the number of the first step for `lp.time()`, one for all rows or (batch,)
    context            a tree of tensors and `lp.shared` tensors that every step reads; None without one
    contexts           its leaves
    sequences, states  the leaves of inputs and state, with their names
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
    one_step: bool = False
    packed: PackedSequence | None = None
    times: Tensor | None = None
    begin: int | Tensor = 0
    context: Tree = None
    contexts: list[ContextLeaf] = field(default_factory=list)
    sequences: list[tuple[str, Tensor]] = field(default_factory=list)
    states: list[tuple[str, Tensor]] = field(default_factory=list)


@under_cell_lock
def checked_call(
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
    time: Any = None,
    context: Tree = None,
    batch_first: bool = False,
    one_step: bool = False,
    range_checks: RangeChecks = EAGER,
) -> Call:
    """Check a call's arguments, as the network gets them, and bring them into one form; an error if one is wrong.

    steps          the length of a call without inputs
    time           the number of the first step; 0 by default
    context        tensors that every step reads, with the batch in front, or `lp.shared` ones without it
    one_step       the arguments come without the length axis
    range_checks   how the values of lengths, classes and probabilities are checked
    """
    axes = ArgumentAxes(one_step, batch_first)
    packed = inputs if isinstance(inputs, PackedSequence) and not one_step else None
    targets, resets, forcing = (axes.to_time_first(value) for value in (targets, resets, forcing))
    if packed is not None:
        inputs, lengths = _unpacked(packed, lengths)
    else:
        inputs = axes.to_time_first(inputs)
    sequences = sequences_of(cell, inputs, ArgumentAxes() if packed is not None else axes)
    state = batch_in_front(cell, state)
    length, batch = sizes_of(cell, sequences, state, targets, 1 if one_step else steps)
    options = state_options(cell, sequences, state)
    state = state_before(cell, state, batch, options)
    call = Call(inputs, state, length, batch, options["device"], draws=draws, one_step=one_step, packed=packed)
    call.sequences = sequences
    call.states = list(zip(state_names(cell, state), leaves_of(state), strict=True)) if state != () else []
    refuse_devices(cell, sequences, (), call.states)
    call.lengths = checked_lengths(lengths, length, batch, call.device, range_checks)
    call.resets = checked_mask("resets", resets, length, batch, call.device, axes)
    if call.resets is not None:
        call.initial = reset_state(cell, state, batch, options)
    call.begin = checked_time(time, batch, call.device)
    call.context, call.contexts = context, checked_context(cell, context, batch, call.device)
    call.targets, call.coin = checked_forcing(cell, call, targets, forcing, axes, range_checks)
    return call


def _unpacked(inputs: PackedSequence, lengths: Any) -> tuple[Tensor, Tensor]:
    if lengths is not None:
        raise ArgumentError(
            "the argument 'lengths' stands beside a PackedSequence, which has lengths of its own.",
            tries="leave out lengths=",
        )
    return pad_packed_sequence(inputs)


def repacked(outputs: Tree, packed: PackedSequence) -> Tree:
    """Outputs (length, batch, ...) in the packing of the inputs."""

    def pack(leaf: Tensor) -> PackedSequence:
        if packed.sorted_indices is not None:
            leaf = leaf.index_select(1, packed.sorted_indices)
        lengths = (packed.batch_sizes.unsqueeze(0) > torch.arange(leaf.shape[1]).unsqueeze(1)).sum(1)
        data = pack_padded_sequence(leaf, lengths).data
        return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)

    return pytree.tree_map(lambda leaf: pack(leaf) if isinstance(leaf, Tensor) else leaf, outputs)


def checked_forcing(
    cell: nn.Module,
    call: Call,
    targets: Any,
    forcing: Any,
    axes: ArgumentAxes,
    range_checks: RangeChecks = EAGER,
) -> tuple[Tensor | None, Tensor | None]:
    """Targets in the shape that is fed back, and where they are: a mask, or None for everywhere.

    (None, None) where no step is forced.
    """
    if targets is None:
        if forcing is not None:
            name = axes.name("targets")
            raise ArgumentError(
                f"the argument 'forcing' stands without {name}.", tries=f"pass {name}=, the true values to feed back"
            )
        return None, None
    leaf = cell.feedback_leaf() if isinstance(cell, Cell) else None
    if leaf is None:
        name = axes.name("targets")
        raise ArgumentError(
            f"the argument '{name}' is passed, but this cell feeds nothing back.",
            cell=place_of(cell),
            expected="a cell whose feedback names the state leaf that carries the output",
            tries='feedback = "o" in the class; or lp.Feedback(cell), whose cell reads [x, fed]',
        )
    fed_back = checked_targets(targets, dict(call.states)[leaf], call.length, call.batch, axes, range_checks)
    if forcing is None:
        return fed_back, None
    coin = checked_coin(forcing, call.length, call.batch, call.device, axes, range_checks)
    if coin is False:
        return None, None
    return fed_back, None if coin is True else coin
