"""Turing machines, and recurrent networks of saturated-linear units that simulate them.

machine        `Machine` and its direct interpreter; machines: seven of them; universal: one that runs all others
stack_code     a stack as one number
units          units by name, and the linear maps between them
construction   the units that simulate a machine
compiled       `compile`, and the cell it returns
run            `run`: a compiled machine on an input, without rounding
precision      what happens in floats
"""

from leporello.turing import machines
from leporello.turing.compiled import MachineCell, compile
from leporello.turing.machine import Configuration, Machine, Outcome
from leporello.turing.precision import FirstError, deepest, first_error
from leporello.turing.run import configurations, run
from leporello.turing.universal import described_tape, description, universal_machine

__all__ = [
    "Configuration",
    "FirstError",
    "Machine",
    "MachineCell",
    "Outcome",
    "compile",
    "configurations",
    "deepest",
    "described_tape",
    "description",
    "first_error",
    "machines",
    "run",
    "universal_machine",
]
