"""Serial networks: the tape enters and leaves one symbol a step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import leporello as lp
from leporello.turing import Machine, machines
from leporello.turing.machines import MACHINES, inputs_up_to
from tests.turing.random_machines import machines_and_inputs


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("length", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_serial_networks_do_what_machines_do(name: str, length: int) -> None:
    make, letters = MACHINES[name]
    machine = make()
    cell = lp.turing.compile(machine, serial=True)
    for word in inputs_up_to(letters, length):
        assert lp.turing.run(cell, word) == machine.run(word), word


@settings(max_examples=10, deadline=None)
@given(machines_and_inputs())
def test_random_machines_serially(drawn: tuple[Machine, str]) -> None:
    machine, word = drawn
    cell = lp.turing.compile(machine, serial=True)
    assert lp.turing.run(cell, word, max_steps=20) == machine.run(word, max_steps=20)


def test_it_serves_one_input_after_another() -> None:
    """When the output is done, the network is again in the state in which it began; symbols may come with pauses."""
    machine = machines.binary_increment()
    cell = lp.turing.compile(machine, serial=True)
    silence = torch.zeros(60, 1, 4, dtype=torch.float64)
    rows = torch.cat([cell.rows_of("1011"), silence, cell.rows_of("11")[:2], silence, cell.rows_of("1"), silence])
    outputs, h = lp.Recurrent(cell)(rows)
    names = list(cell.outputs)
    symbols = [names.index(("out", place)) for place in range(3)]
    given = [machine.alphabet[int(row.argmax())] for row in outputs[:, 0, symbols] if row.any()]
    assert "".join(given).replace("_", "") == "1100" + "1000"
    assert outputs[:, 0, names.index("done")].sum() == 2
    torch.testing.assert_close(h, cell.initial_state(1), rtol=0, atol=0)


def test_its_time_is_linear_in_the_machines_time_and_in_the_tape() -> None:
    cell = lp.turing.compile(machines.unary_increment(), serial=True)
    done = list(cell.outputs).index("done")
    silence = torch.zeros(60, 1, 3, dtype=torch.float64)
    times = [
        int(lp.Recurrent(cell)(torch.cat([cell.rows_of("1" * n), silence]))[0][:, 0, done].argmax()) for n in (2, 4, 6)
    ]
    assert times[1] - times[0] == times[2] - times[1]


def test_what_is_missing_is_named() -> None:
    cell = lp.turing.compile(machines.unary_increment(), serial=True)
    with pytest.raises(lp.errors.ArgumentError, match="needs an input"):
        lp.Recurrent(cell)(None, steps=3)
    with pytest.raises(lp.errors.ArgumentError, match="starts without an input"):
        cell.state_of("1")
