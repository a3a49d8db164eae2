"""`compile` and `run`: compiled networks beside the interpreter, and as ordinary cells."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings

import leporello as lp
from leporello.turing import Machine, configurations, machines
from leporello.turing.machines import MACHINES, inputs_up_to
from tests.turing.random_machines import machines_and_inputs

LINEAR = {"mm", "addmm", "add", "mul", "permute", "t", "view", "cat", "clamp"}


def held_out() -> Machine:
    """Of an equal number of a, b and c in this order: none of the library's machines. It marks one of each in turn."""
    rules = {
        ("a", "a"): ("b", "x", 1), ("a", "y"): ("check", "y", 1), ("a", "_"): ("yes", "_", 0),
        ("b", "a"): ("b", "a", 1), ("b", "y"): ("b", "y", 1), ("b", "b"): ("c", "y", 1),
        ("c", "b"): ("c", "b", 1), ("c", "z"): ("c", "z", 1), ("c", "c"): ("back", "z", -1),
        ("check", "y"): ("check", "y", 1), ("check", "z"): ("check", "z", 1), ("check", "_"): ("yes", "_", 0),
        ("back", "x"): ("a", "x", 1), **{("back", letter): ("back", letter, -1) for letter in "abyz"},
    }  # fmt: skip
    states = ["a", "b", "c", "back", "check", "yes"]
    return Machine(states=states, alphabet="abcxyz", transitions=rules, start="a", halt={"yes"})


def assert_equal_runs(machine: Machine, cell: lp.Cell, words: list[str], max_steps: int = 1000) -> None:
    for word in words:
        assert lp.turing.run(cell, word, max_steps=max_steps) == machine.run(word, max_steps=max_steps), word


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("length", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_networks_do_what_machines_do(name: str, length: int) -> None:
    make, letters = MACHINES[name]
    machine = make()
    assert_equal_runs(machine, lp.turing.compile(machine), inputs_up_to(letters, length - (len(letters) > 2)))


@pytest.mark.parametrize("length", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_a_machine_of_ones_own(length: int) -> None:
    machine = held_out()
    cell = lp.turing.compile(machine)
    assert_equal_runs(machine, cell, inputs_up_to("abc", length - 1))
    assert lp.turing.run(cell, "a" * length + "b" * length + "c" * length).state == "yes"


def equal_to_the_interpreter(drawn: tuple[Machine, str]) -> None:
    machine, word = drawn
    assert_equal_runs(machine, lp.turing.compile(machine), [word], max_steps=25)


@settings(max_examples=15, deadline=None)
@given(machines_and_inputs())
def test_random_machines(drawn: tuple[Machine, str]) -> None:
    equal_to_the_interpreter(drawn)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(machines_and_inputs())
def test_many_random_machines(drawn: tuple[Machine, str]) -> None:
    equal_to_the_interpreter(drawn)


@pytest.mark.parametrize("name", ["copy", "busy beaver", "palindrome"])
def test_two_steps_of_the_network_are_one_of_the_machine(name: str) -> None:
    """Every configuration is the machine's, at every step, both stacks and the blanks it has visited included."""
    make, letters = MACHINES[name]
    machine, word = make(), letters[:1] * 3
    right = list(machine.configurations(word))
    assert list(islice(configurations(lp.turing.compile(machine), word), len(right))) == right


@pytest.mark.parametrize("serial", [False, True])
def test_the_loop_has_products_sums_and_clamps_alone(serial: bool) -> None:
    cell = lp.turing.compile(held_out(), serial=serial)
    loop = lp.fold(cell, torch.zeros(1, 8, dtype=torch.float64)) if serial else lp.fold(cell)
    operators = {str(node.target).split(".")[1] for node in loop.nodes}
    assert operators <= LINEAR
    assert {"mm", "add", "clamp"} <= operators
    assert [node.args[1:] for node in loop.nodes if "clamp" in str(node.target)] == [(0, 1)]


@pytest.mark.parametrize("name", MACHINES)
def test_weights_are_dyadic_and_need_few_bits(name: str) -> None:
    cell = lp.turing.compile(MACHINES[name][0](), serial=True)
    for weight in cell.parameters():
        assert torch.equal((weight * cell.base**2).round(), weight * cell.base**2)
        assert torch.equal(weight.float().double(), weight)


def test_other_weights_give_another_result() -> None:
    machine = machines.unary_increment()
    cell = lp.turing.compile(machine)
    place = {name: index for index, name in enumerate(cell.names)}
    with torch.no_grad():  # on a blank, go on to the right instead of halting
        cell.W[place["state", "end"]] = 0
        cell.W[place["state", "run"], place["reading", "run", 0]] = 1
        cell.W[place["state", "run"], place["reading", "run", 1]] = 0
    assert not lp.turing.run(cell, "11", max_steps=10).halted
    assert machine.run("11", max_steps=10).halted


def test_it_is_a_cell_like_any_other() -> None:
    machine = machines.binary_increment()
    cell = lp.turing.compile(machine)
    first = torch.cat([cell.state_of(word) for word in ("1011", "111", "")])
    net = lp.Recurrent(cell)
    _, h = net(None, first, steps=20)
    assert [machine.outcome(cell.configuration(row), 0, True).tape for row in h] == ["1100", "1000", "1"]
    strip = lp.fold(cell).unfold(4)
    torch.testing.assert_close(strip.run(None, first)[1], net(None, first, steps=4)[1])
    assert all("<svg" in picture.svg() for picture in (lp.fold(cell), strip))
    assert cell.configuration(net(None, steps=2)[1]).state == "carry"  # the empty tape is the initial state


def test_gradients_reach_the_weights() -> None:
    cell = lp.turing.compile(machines.unary_increment())
    lp.Recurrent(cell)(None, cell.state_of("1"), steps=4)[0].sum().backward()
    assert cell.V.grad is not None
    assert cell.V.grad.abs().sum() > 0


def test_what_is_no_configuration_is_refused() -> None:
    cell = lp.turing.compile(machines.unary_increment())
    _, between = lp.Recurrent(cell)(None, steps=1)
    with pytest.raises(lp.errors.ArgumentError, match="no configuration"):
        cell.configuration(between)
    with pytest.raises(lp.errors.ArgumentError, match="no compiled machine"):
        lp.turing.run(lp.RNN(2, 3), "1")
    with pytest.raises(lp.errors.ArgumentError, match="no machine"):
        lp.turing.compile(cell)
