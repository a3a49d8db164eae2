"""The universal machine, by the interpreter and compiled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import leporello as lp
from leporello.turing import Machine, described_tape, description, machines, universal_machine
from tests.turing.random_machines import machines_and_inputs

UNITS_OF_SIEGELMANN_AND_SONTAG = 886


def three_states() -> Machine:
    """The busy beaver of three states: six ones in 14 steps."""
    rules = {
        ("A", "_"): ("B", "1", 1), ("A", "1"): ("H", "1", 1), ("B", "_"): ("C", "_", 1),
        ("B", "1"): ("B", "1", 1), ("C", "_"): ("C", "1", -1), ("C", "1"): ("A", "1", -1),
    }  # fmt: skip
    return Machine(states="ABCH", alphabet="1", transitions=rules, start="A", halt={"H"})


PROGRAMS = [(machines.unary_increment(), "111", 0), (three_states(), "", 4)]


def test_compiled_once_it_runs_two_programs() -> None:
    cell = lp.turing.compile(universal_machine())
    weights = [weight.clone() for weight in cell.parameters()]
    for machine, word, room in PROGRAMS:
        tape = description(machine, word, room=room)
        found = lp.turing.run(cell, tape)
        assert found == universal_machine().run(tape)
        assert (found.state, described_tape(machine, str(found.tape))) == ("halt", machine.run(word).tape)
    assert all((one == other).all() for one, other in zip(weights, cell.parameters(), strict=True))
    assert len(cell.names) < UNITS_OF_SIEGELMANN_AND_SONTAG


@pytest.mark.slow
def test_it_runs_the_busy_beaver_of_four_states() -> None:
    machine = machines.busy_beaver()
    tape = description(machine, room=14)
    found = lp.turing.run(lp.turing.compile(universal_machine()), tape, max_steps=20_000)
    assert described_tape(machine, str(found.tape)) == machine.run().tape


@settings(max_examples=60, deadline=None)
@given(machines_and_inputs(symbols=2).filter(lambda drawn: len(drawn[0].alphabet) == 2))
def test_it_does_what_any_machine_of_two_symbols_does(drawn: tuple[Machine, str]) -> None:
    machine, word = drawn
    expected = machine.run(word, max_steps=30)
    found = universal_machine().run(description(machine, word, room=31), max_steps=100_000 if expected.halted else 5000)
    assert found.halted or not expected.halted
    if expected.halted:
        assert (found.state, described_tape(machine, str(found.tape))) == ("halt", expected.tape)


def test_a_machine_of_three_symbols_is_refused() -> None:
    with pytest.raises(lp.errors.ArgumentError, match="two symbols"):
        description(machines.binary_increment(), "1")


def test_without_room_on_the_left_it_stops_there() -> None:
    found = universal_machine().run(description(three_states(), room=0))
    assert (found.state, found.halted) == ("mark", True)
