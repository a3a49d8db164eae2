"""What a compiled machine does in floats: right until the tape is deeper than the mantissa is long, then wrong.

A stack of n symbols in base B needs n log2(B) bits. A float has a fixed number of them, and rounding removes the
bottom of the stack first: the machine goes on, on another tape.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.nets.record import record
from leporello.nets.recurrent import Recurrent
from leporello.nets.typing import EngineName
from leporello.turing.compiled import STEPS_PER_STEP, MachineCell
from leporello.turing.machine import Configuration, Symbol, refuse_steps

MANTISSA_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
STEPS_OF_A_CALL = 50  # of the machine


@dataclass(frozen=True)
class FirstError:
    """Where a network in floats first differs from the machine.

    step    of the machine, from 1 on: after it the configuration is another one; 0 if the input does not fit
    depth   cells in the deeper of the two stacks after that step
    """

    step: int
    depth: int


def deepest(cell: MachineCell, dtype: torch.dtype) -> int:
    """How many cells of a stack fit into the mantissa of a float: its bits over log2 of the base.

    >>> from leporello.turing.compiled import compile
    >>> from leporello.turing.machines import zigzag
    >>> deepest(compile(zigzag()), torch.float32)
    12
    """
    return MANTISSA_BITS[dtype] // (cell.base.bit_length() - 1)


def first_error(
    cell: MachineCell,
    input: Iterable[Symbol] = (),
    *,
    dtype: torch.dtype,
    max_steps: int = 1000,
    engine: EngineName = "stepwise",
) -> FirstError | None:
    """Run a compiled machine in floats, and find the first step after which its configuration is wrong.

    None where it is right up to the step at which it halts, or up to `max_steps`.

    engine   as in `lp.Recurrent`; the default compiles nothing
    """
    refuse_steps(max_steps)
    if cell.serial or dtype not in MANTISSA_BITS:
        raise ArgumentError(
            "the argument 'cell' is a serial network." if cell.serial else "the argument 'dtype' is no float.",
            came=None if cell.serial else str(dtype),
            expected="turing.compile(machine)" if cell.serial else ", ".join(map(str, MANTISSA_BITS)),
        )
    rounded = copy.deepcopy(cell).to(dtype)
    right = islice(cell.machine.configurations(input), max_steps + 1)
    for step, (expected, state) in enumerate(zip(right, _states(rounded, input, engine), strict=False)):
        if _configuration(rounded, state) != expected:
            return FirstError(step, max(len(expected.left), len(expected.right)))
    return None


@torch.no_grad()
def _states(cell: MachineCell, input: Iterable[Symbol], engine: EngineName) -> Iterator[Tensor]:
    """The state before the first step and after each step of the machine, without an end."""
    net = Recurrent(record(cell, "h"), engine=engine)
    h = cell.state_of(input)
    yield h
    while True:
        (_, seen), h = net(None, h, steps=STEPS_PER_STEP * STEPS_OF_A_CALL)
        yield from seen["h"][STEPS_PER_STEP - 1 :: STEPS_PER_STEP]


def _configuration(cell: MachineCell, state: Tensor) -> Configuration | None:
    """The configuration in a state; None where it is none."""
    try:
        return cell.configuration(state)
    except ArgumentError:
        return None
