"""`Machine`: its interpreter beside plain Python, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import leporello as lp
from leporello.turing import Machine, Outcome, machines
from leporello.turing.machines import inputs_up_to

ONE = {
    "states": ["go", "end"],
    "alphabet": "1",
    "start": "go",
    "halt": {"end"},
    "transitions": {("go", "1"): ("go", "1", 1), ("go", "_"): ("end", "1", 0)},
}


def balanced(word: str) -> bool:
    depth = 0
    for letter in word:
        depth += 1 if letter == "(" else -1
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("number", [0, 1, 2, 7, 8, 1023])
def test_increments_add_one(number: int) -> None:
    assert machines.binary_increment().run(f"{number:b}").tape == f"{number + 1:b}"
    assert machines.unary_increment().run("1" * (number % 20)).tape == "1" * (number % 20 + 1)


@pytest.mark.parametrize("word", inputs_up_to("ab", 5))
def test_palindromes_and_copies(word: str) -> None:
    assert machines.palindrome().run(word).state == ("yes" if word == word[::-1] else "no")
    assert machines.copy().run(word).tape == f"{word}={word}"


@pytest.mark.parametrize("word", inputs_up_to("()", 6))
def test_brackets(word: str) -> None:
    assert machines.balanced_brackets().run(word).state == ("yes" if balanced(word) else "no")


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 5), (5, 0), (3, 1), (13, 27)])
def test_addition(one: int, other: int) -> None:
    found = machines.binary_addition().run(f"{one:b}+{other:b}")
    assert (found.state, found.tape) == ("end", f"{one + other:b}")


def test_the_busy_beaver_of_four_states_makes_107_steps_and_13_ones() -> None:
    found = machines.busy_beaver().run()
    assert (found.steps, str(found.tape).count("1"), found.state) == (107, 13, "H")


def test_a_missing_transition_halts_in_its_state() -> None:
    machine = Machine(**{**ONE, "transitions": {("go", "1"): ("go", "1", 1)}})
    assert machine.run("11") == Outcome(state="go", tape="11", steps=2, halted=True)


def test_transitions_out_of_a_halting_state_are_never_taken() -> None:
    machine = Machine(**{**ONE, "transitions": {**ONE["transitions"], ("end", "1"): ("go", "1", 1)}})
    assert machine.run("11") == Machine(**ONE).run("11")


@pytest.mark.parametrize("max_steps", [0, 1, 3])
def test_it_is_stopped_after_max_steps(max_steps: int) -> None:
    found = machines.zigzag().run(max_steps=max_steps)
    assert (found.steps, found.halted) == (max_steps, False)


def test_a_machine_that_halts_at_the_last_allowed_step_has_halted() -> None:
    assert Machine(**ONE).run("11", max_steps=3).halted
    assert not Machine(**ONE).run("11", max_steps=2).halted


def test_states_and_symbols_may_be_any_hashable_value() -> None:
    machine = Machine(
        states={0, (1, "x")},
        alphabet=["no", "ab"],
        blank="no",
        start=0,
        halt={(1, "x")},
        transitions={(0, "ab"): (0, "ab", 1), (0, "no"): ((1, "x"), "ab", 0)},
    )
    assert machine.run(["ab"]) == Outcome(state=(1, "x"), tape=("ab", "ab"), steps=2, halted=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start": "gone"}, ["'start'", "'gone'", "'go', 'end'"]),
        ({"halt": {"stop"}}, ["'halt'", "'stop'"]),
        ({"alphabet": 3}, ["'alphabet'", "came", "3"]),
        ({"states": [["go"]]}, ["'states'"]),
        ({"transitions": {("go", "1"): ("went", "1", 1)}}, ["'transitions'", "'went'", "('go', '1')"]),
        ({"transitions": {("go", "2"): ("go", "1", 1)}}, ["symbol", "'2'", "'_', '1'"]),
        ({"transitions": {("go", "1"): ("go", "1", 2)}}, ["2", "-1 for left"]),
        ({"transitions": {("go", "1"): ("go", "1", "R")}}, ["'R'", "-1 for left"]),
        ({"transitions": {("go", "1"): ("go", "1")}}, ["another form", "(state, symbol)"]),
    ],
)
def test_what_is_no_machine_is_refused(change: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(lp.errors.ArgumentError) as caught:
        Machine(**{**ONE, **change})
    assert [words for words in said if words not in str(caught.value)] == []


def test_an_input_of_other_symbols_is_refused() -> None:
    with pytest.raises(lp.errors.ArgumentError, match="'2'"):
        Machine(**ONE).run("12")
    with pytest.raises(lp.errors.ArgumentError, match="max_steps"):
        Machine(**ONE).run("1", max_steps=-1)
