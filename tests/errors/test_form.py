"""The form of all errors: one sentence, then aligned details; kinds that Python knows; nothing lost on the way."""

from __future__ import annotations

import inspect
import logging
import pickle

import pytest
import torch

import leporello as lp
from leporello import errors
from leporello.call.inputs import ArgumentAxes
from leporello.errors import ArgumentError, LeporelloError, StateMismatch
from tests.errors import steps
from tests.errors.said import said

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LeporelloError)]


def test_details_are_aligned_and_those_without_a_value_left_out() -> None:
    error = ArgumentError(
        "the argument 'x' is wrong.", cell="Leaky", came=None, goes_in="this\nand that", tries="another"
    )
    assert str(error) == (
        "the argument 'x' is wrong.\n  cell     Leaky\n  goes in  this\n           and that\n  try      another"
    )


def test_a_place_is_told_in_front_and_only_once() -> None:
    error = StateMismatch("the state changes.", cell="Inner", tries="this")
    error.place(cell="Outer", line="a.py, line 3", module=None)
    assert str(error) == "the state changes.\n  cell  Inner\n  line  a.py, line 3\n  try   this"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling(kind: type[LeporelloError]) -> None:
    error = kind("what.", came="this", tries="that")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not LeporelloError])
def test_an_error_is_of_a_kind_that_python_knows_and_torch_does_not_swallow(kind: type[LeporelloError]) -> None:
    assert issubclass(kind, (ValueError, AssertionError, ArithmeticError, ImportError))
    assert not issubclass(
        kind, (TypeError, AttributeError, RuntimeError)
    )  # operators turn a TypeError into another try


def test_a_refused_step_says_nothing_beside_the_error(caplog: pytest.LogCaptureFixture, capfd) -> None:
    with caplog.at_level(logging.WARNING):
        said(ArgumentError, lambda: lp.Recurrent(steps.Good())(torch.ones(5, 2, 7)))
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_words_speak_of_axes_as_the_caller_wrote_them() -> None:
    assert ArgumentAxes().shape("length", "batch", 3) == "(length, batch, 3)"
    assert ArgumentAxes(batch_first=True).shape(5, 2, 3) == "(2, 5, 3)"
    assert ArgumentAxes(one_step=True).shape(1, 2) == "(2,)"
    x = torch.zeros(5, 2, 3)
    for axes in (ArgumentAxes(), ArgumentAxes(batch_first=True), ArgumentAxes(one_step=True)):
        assert axes.described(axes.to_time_first({"x": x, "n": 1})) == "{x: float32 [5, 2, 3], n: int}"
    assert [ArgumentAxes(one_step=True).name(name) for name in ("inputs", "resets", "targets", "forcing")] == [
        "x",
        "reset",
        "target",
        "forcing",
    ]
