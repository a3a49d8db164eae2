"""`compile`: a machine as a recurrent network of saturated-linear units, and the cell that it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.turing.construction import PLACE, READY, construct
from leporello.turing.machine import MOVES, Configuration, Machine, Symbol
from leporello.turing.stack_code import Number, base_of, stack_number, stack_symbols

STEPS_PER_STEP = 2  # of the network, for one of the machine


class MachineCell(Cell):
    """h' = clamp(b + W h + U x, 0, 1);  o = c + V h'. Without serial input there is no x, and no U.

    An Elman network like any other, but for its activation. `compile` makes it; `names` has the name of each unit.

    machine   the machine that it simulates
    serial    whether it reads and writes the tape one symbol a step
    names     of the units, in the order of the state h
    outputs   names of the outputs: ("halted", state) for each state; with `serial` also ("out", i) for each symbol, and
              "done"
    """

    U: Tensor
    W: Tensor
    b: Tensor
    V: Tensor
    c: Tensor

    def __init__(self, machine: Machine, *, serial: bool = False) -> None:
        units = construct(machine, serial=serial)
        super().__init__(h=len(units.sums))
        self.machine, self.serial = machine, serial
        self.base = base_of(len(machine.alphabet))
        self.names, self.outputs = tuple(units.sums), tuple(units.outputs)
        for name, matrix in units.matrices().items():
            setattr(self, name, nn.Parameter(matrix))

    def forward(self, x: Tensor | None, h: Tensor) -> tuple[Tensor, Tensor]:
        a = self.b + h @ self.W.T
        if self.serial:
            a = a + self._checked(x) @ self.U.T
        h = a.clamp(0, 1)
        return self.c + h @ self.V.T, h

    def _checked(self, x: Tensor | None) -> Tensor:
        if x is None:
            raise ArgumentError(
                "a network that reads its tape symbol by symbol needs an input.",
                expected=f"[batch, {len(self.machine.alphabet) + 1}]: one-hot rows, the last column the end mark",
                tries="turing.run(cell, input), which makes it; or turing.compile(machine) without serial=True",
            )
        return x

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The machine in its start state on an empty tape; with `serial`, ready to read."""
        numbers = [float(number) for number in self.exact_state()]
        state = torch.tensor([numbers], device=device or self.W.device, dtype=dtype or self.W.dtype)
        return state.expand(batch, -1)

    def state_of(self, input: Iterable[Symbol]) -> Tensor:
        """The state [1, units] before the first step with an input on the tape; rounded if it is too long."""
        numbers = [float(number) for number in self.exact_state(input)]
        return torch.tensor([numbers], device=self.W.device, dtype=self.W.dtype)

    def exact_state(self, input: Iterable[Symbol] = ()) -> list[Number]:
        """The same without rounding."""
        place = {symbol: index for index, symbol in enumerate(self.machine.alphabet)}
        symbols = [place[symbol] for symbol in self.machine.symbols(input)]
        values: dict[object, Number] = {
            ("state", self.machine.start): 1,
            ("right", 0): stack_number(symbols, self.base),
        }
        if self.serial:
            if symbols:
                raise ArgumentError(
                    "a network that reads its tape symbol by symbol starts without an input.",
                    came=repr(input),
                    tries="turing.run(cell, input)",
                )
            values = {PLACE: Fraction(1, self.base)}
        return [values.get(name, 0) for name in self.names]

    def configuration(self, h: Tensor | Sequence[Number]) -> Configuration:
        """The machine's configuration in a state of the network, between two steps of the machine.

        h   [units] or [1, units], or as many numbers
        """
        numbers = h.detach().flatten().tolist() if isinstance(h, Tensor) else list(h)
        value = dict(zip(self.names, numbers, strict=True))
        on = [state for state in self.machine.states if value["state", state] != 0]
        if len(on) != 1 or value["state", on[0]] != 1:
            raise ArgumentError(
                "the state of the network is no configuration of the machine.",
                came=f"{len(on)} states that are not 0",
                expected="1 in one of them, after an even number of steps",
            )
        sources = (*MOVES, *([READY] if self.serial else []))
        return Configuration(
            on[0],
            self._symbols(sum(Fraction(value["left", move]) for move in MOVES)),
            self._symbols(sum(Fraction(value["right", source]) for source in sources)),
        )

    def _symbols(self, number: Number) -> tuple[Symbol, ...]:
        indices = stack_symbols(number, self.base, len(self.machine.alphabet))
        return tuple(self.machine.alphabet[index] for index in indices)

    def rows_of(self, input: Iterable[Symbol]) -> Tensor:
        """An input as the rows [length + 1, 1, symbols + 1] that a serial network reads, an end mark behind them."""
        alphabet = self.machine.alphabet
        indices = [alphabet.index(symbol) for symbol in self.machine.symbols(input)]
        rows = nn.functional.one_hot(torch.tensor([*indices, len(alphabet)]), len(alphabet) + 1)
        return rows.to(self.W.dtype).unsqueeze(1)


def compile(machine: Machine, *, serial: bool = False) -> MachineCell:
    """A recurrent network that simulates a machine: two steps of the network for each step of the machine.

    Products, sums and clamp(·, 0, 1) alone. The weights are rationals with a power of two below, in float64, and they
    are exact. The state of the network is that of the machine with its tape, so it must be exact too: run it with
    `turing.run`, or with the engine `exact`; in floats the tape may be as deep as their precision allows.

    serial   the tape enters one symbol a step, with an end mark behind it, and leaves so once the machine has halted;
             otherwise it is in the first state, `cell.state_of(input)`, and in the last, `cell.configuration(h)`

    >>> from leporello.turing.machines import unary_increment
    >>> cell = compile(unary_increment())
    >>> len(cell.names), cell.base
    (17, 4)
    """
    if not isinstance(machine, Machine):
        raise ArgumentError(
            "the argument 'machine' is no machine.", came=type(machine).__name__, expected="a turing.Machine"
        )
    return MachineCell(machine, serial=serial)
