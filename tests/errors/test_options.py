"""What a network is built of: a cell, an engine, a gradient method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, 3)


@pytest.mark.parametrize("engine", ["cuda", "", None, 3], ids=repr)
def test_an_unknown_engine_is_refused_with_the_known_ones(engine: Any) -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(steps.Good(), engine=engine),
        "the argument 'engine' names no engine.",
        f"came      {engine!r}",
        "auto",
        "stepwise",
        "reference",
    )


def test_an_engine_set_later_is_checked_too() -> None:
    net = lp.Recurrent(steps.Good())
    net(X)
    net.engine = "fast"
    said(ArgumentError, lambda: net(X), "the argument 'engine' names no engine.", "'fast'")


@pytest.mark.parametrize("gradient", ["full", 35, lp.Full, object()], ids=["name", "number", "class", "object"])
def test_a_gradient_that_is_no_method_is_refused(gradient: Any) -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(steps.Good(), gradient=gradient),
        "the argument 'gradient' is no gradient method.",
        f"came      {gradient!r}",
        "expected  an object such as lp.Full()",
    )


@pytest.mark.parametrize(("cell", "came"), [(3, "int"), ("GRU", "str"), (None, "NoneType"), (lp.GRU, "the class GRU")])
def test_what_is_no_step_is_refused(cell: Any, came: str) -> None:
    for call in (lambda: lp.Recurrent(cell), lambda: lp.fold(cell, X[0])):
        said(ArgumentError, call, "the argument 'cell' is no step.", f"came      {came}")


@pytest.mark.parametrize(
    "make",
    [lp.Feedback, lp.Stack, lambda cell: lp.Summary(cell, nn.Identity())],
    ids=["Feedback", "Stack", "Summary"],
)
def test_what_goes_round_a_cell_needs_one_that_declares_its_state(make: Any) -> None:
    said(ArgumentError, lambda: make(nn.Linear(3, 4)), "came      Linear", "expected  lp.Cell")


def test_feedback_needs_to_know_the_size_of_what_is_fed_back() -> None:
    said(ArgumentError, lambda: lp.Feedback(steps.Good()), "the size of what is fed back is not known.", "size=10")


def test_a_value_that_nobody_names_cannot_be_recorded() -> None:
    net = lp.Recurrent(lp.record(steps.Good(), "r"))
    said(
        ArgumentError,
        lambda: net(X),
        "the cell has no value 'r' to record.",
        steps.place(steps.Good),
        'lp.named(value, "r")',
    )


@pytest.mark.parametrize("dropout", [-0.1, 1, 2.0], ids=repr)
def test_a_dropout_that_is_no_probability_is_refused(dropout: float) -> None:
    said(ArgumentError, lambda: lp.Stack(lp.GRU(3, 4), dropout=dropout), "the argument 'dropout' is no probability.")


@pytest.mark.parametrize("net", [lp.GRU(3, 4), lp.Summary(lp.GRU(3, 4), nn.Identity())], ids=["cell", "Summary"])
def test_only_networks_can_be_checked(net: Any) -> None:
    said(ArgumentError, lambda: lp.check_gradients(net, X), "the argument 'net' is no network to check.")


@pytest.mark.parametrize("count", [0, -1, 2.0, True], ids=repr)
def test_a_strip_needs_a_length(count: Any) -> None:
    loop = lp.fold(steps.Good(), X[0])
    said(ArgumentError, lambda: loop.unfold(count), "the argument 'steps' is no length.", f"came      {count!r}")


def test_a_strip_runs_its_own_length_only() -> None:
    strip = lp.fold(steps.Good(), X[0]).unfold(3)
    said(ArgumentError, lambda: strip.run(X), "has another length than the strip.", "loop.unfold(5)")


def test_a_cell_is_folded_without_arguments_of_a_call() -> None:
    said(ArgumentError, lambda: lp.fold(steps.Good(), X[0], resets=X), "folding a cell takes no argument 'resets'.")


def test_several_loops_cannot_be_folded_into_one() -> None:
    net = lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4))
    said(ArgumentError, lambda: lp.fold(net, X), "Bidirectional is several loops.", "net.ahead")
