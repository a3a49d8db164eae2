"""`run`: a compiled machine on an input, by the engine `exact`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from weakref import WeakKeyDictionary

import torch

from leporello.engine import exact
from leporello.engine.rational import Exact
from leporello.errors import ArgumentError
from leporello.nets.fold import fold
from leporello.turing.compiled import STEPS_PER_STEP, MachineCell
from leporello.turing.construction import DONE
from leporello.turing.machine import MAX_STEPS, Configuration, Outcome, State, Symbol, refuse_steps
from leporello.turing.stack_code import Number
from leporello.view.folded_loop import FoldedLoop

_loops: WeakKeyDictionary[MachineCell, tuple[torch.dtype, FoldedLoop]] = WeakKeyDictionary()


def run(cell: MachineCell, input: Iterable[Symbol] = (), *, max_steps: int = MAX_STEPS) -> Outcome:
    """What a compiled machine does with an input: the Loop of the cell, run on rational numbers without rounding.

    A serial cell gets the input one symbol a step, and its tape is read from its outputs.

    max_steps   of the machine; after so many it is stopped, and `halted` is False

    >>> from leporello.turing.compiled import compile
    >>> from leporello.turing.machines import binary_increment
    >>> run(compile(binary_increment()), "1011")
    Outcome(state='end', tape='1100', steps=8, halted=True)
    """
    _refuse_other(cell)
    refuse_steps(max_steps)
    return _serially(cell, input, max_steps) if cell.serial else _from_state(cell, input, max_steps)


def configurations(cell: MachineCell, input: Iterable[Symbol] = ()) -> Iterator[Configuration]:
    """All configurations that a compiled machine goes through, from the start on; without an end."""
    _refuse_other(cell)
    if cell.serial:
        raise ArgumentError("a serial network has no first configuration.", tries="turing.compile(machine)")
    yield cell.configuration(cell.exact_state(input))
    for number, (_, state) in enumerate(_steps(cell, input, repeat({})), start=1):
        if number % STEPS_PER_STEP == 0:
            yield cell.configuration(state["h"].numbers)


def _from_state(cell: MachineCell, input: Iterable[Symbol], max_steps: int) -> Outcome:
    """The tape is in the first state and in the last. A network step reads, and says whether the machine halts here."""
    state = cell.exact_state(input)
    for number, (outputs, after) in enumerate(_steps(cell, input, repeat({}))):
        steps, acts = divmod(number, STEPS_PER_STEP)
        halted = not acts and _halted(cell, outputs) is not None
        if halted or (not acts and steps == max_steps):
            return cell.machine.outcome(cell.configuration(state), steps, halted)
        if acts:
            state = after["h"].numbers
    raise AssertionError("without an end")


def _serially(cell: MachineCell, input: Iterable[Symbol], max_steps: int) -> Outcome:
    """Symbols in, an end mark, nothing while the machine works; then symbols out, until the network says that it is
    done."""
    rows = [Exact.of(row) for row in cell.rows_of(input)]
    silence = Exact(rows[0].shape, [0] * len(rows[0].numbers))
    first = len(rows) + 1  # the step after which the machine is in its start state
    symbols: list[Symbol] = []
    stopped: tuple[State, int] | None = None
    taken = chain(({"x": row} for row in rows), repeat({"x": silence}))
    before: list[Number] = []
    for number, (outputs, after) in enumerate(_steps(cell, (), taken), start=1):
        steps, reads = divmod(number - first, STEPS_PER_STEP)
        halted = _halted(cell, outputs)
        if halted is not None:
            stopped = (halted[0], steps)
        if stopped is None and reads and steps == max_steps:
            return cell.machine.outcome(cell.configuration(before), steps, False)
        before = after["h"].numbers
        given = dict(zip(cell.outputs, outputs["o"].numbers, strict=True))
        symbols += [symbol for place, symbol in enumerate(cell.machine.alphabet) if given["out", place] == 1]
        if given[DONE] == 1 and stopped is not None:
            return Outcome(stopped[0], cell.machine.tape(symbols), stopped[1])
    raise AssertionError("without an end")


def _halted(cell: MachineCell, outputs: Mapping[str, Exact]) -> tuple[State] | None:
    """The state that the network says the machine halts in, if it says so."""
    given = dict(zip(cell.outputs, outputs["o"].numbers, strict=True))
    return next(((state,) for state in cell.machine.states if given["halted", state] == 1), None)


def _steps(
    cell: MachineCell, input: Iterable[Symbol], inputs: Iterable[Mapping[str, Exact]]
) -> Iterator[tuple[dict[str, Exact], dict[str, Exact]]]:
    state = Exact((1, len(cell.names)), cell.exact_state(input))
    return exact.steps(_loop(cell), {"h": state}, inputs)


def _loop(cell: MachineCell) -> FoldedLoop:
    """The cell's Loop, traced once; its parameters are read at every run."""
    dtype = cell.W.dtype
    if cell not in _loops or _loops[cell][0] != dtype:
        x = torch.zeros(1, len(cell.machine.alphabet) + 1, dtype=dtype) if cell.serial else None
        _loops[cell] = (dtype, fold(cell, x))
    return _loops[cell][1]


def _refuse_other(cell: MachineCell) -> None:
    if not isinstance(cell, MachineCell):
        raise ArgumentError(
            "the argument 'cell' is no compiled machine.",
            came=type(cell).__name__,
            expected="what turing.compile(machine) returns",
        )
