"""What a step gives back: an output and the next state, each row its own, the state as it came in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError, MissingState, StateMismatch
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, steps.INPUTS)


@pytest.mark.parametrize(
    ("step", "came"),
    [
        (steps.OneResult, "one value: float32 [batch, 4]"),
        (steps.ThreeResults, "3 values: (float32 [batch, 4], float32 [batch, 4], float32 [batch, 4])"),
        (steps.NoResult, "came      None"),
        (steps.ListResult, "one value: [float32 [batch, 4], float32 [batch, 4]]"),
    ],
)
def test_a_step_that_does_not_return_two_values_is_refused(step: type, came: str) -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(step())(X),
        "a step returns two results, the output and the next state.",
        steps.place(step),
        came,
        "`return output, state`",
    )


@pytest.mark.parametrize(
    ("step", "comes_out"),
    [
        (steps.Grows, "float32 [batch, 8]"),
        (steps.Widens, "float64 [batch, 4]"),
        (steps.Averages, "float32 [4]"),
    ],
)
def test_a_state_that_changes_its_shape_or_dtype_is_refused_by_name(step: type, comes_out: str) -> None:
    text = said(StateMismatch, lambda: lp.Recurrent(step())(X))
    assert text == (
        "the state 'h' changes during one step.\n"
        f"  cell       {steps.place(step)}\n"
        "  goes in    float32 [batch, 4]\n"
        f"  comes out  {comes_out}\n"
        "  try        return a state with the shape and dtype it came in with"
    )


@pytest.mark.parametrize(
    ("step", "comes_out"), [(steps.Pairs, "(float32 [batch, 4], float32 [batch, 4])"), (steps.Forgets, "None")]
)
def test_a_state_that_changes_its_structure_is_refused(step: type, comes_out: str) -> None:
    said(
        StateMismatch,
        lambda: lp.Recurrent(step())(X),
        "the state changes its structure during one step.",
        "goes in    float32 [batch, 4]",
        f"comes out  {comes_out}",
        steps.place(step),
    )


@pytest.mark.parametrize(
    ("step", "name", "came"),
    [
        (steps.OutputWithoutBatch, "o", "float32 []"),
        (steps.OutputTurned, "turned", "float32 [4, batch]"),
        (steps.OutputFlat, "o", "float32 [4 * batch]"),
    ],
)
def test_an_output_without_the_batch_in_front_is_refused_by_name(step: type, name: str, came: str) -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(step())(X),
        f"the output '{name}' has no batch axis in front.",
        f"came      {came}",
        "expected  [batch, ...]",
        steps.place(step),
    )


def test_an_output_that_is_no_tensor_is_refused_by_name() -> None:
    said(
        ArgumentError, lambda: lp.Recurrent(steps.OutputNumber())(X), "the output 'o1' is no tensor.", "came      float"
    )


def test_a_step_that_takes_no_state_is_refused() -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(lambda x: (x, ()))(X, ()),
        "the step does not take an input and a state.",
        "a step that takes (x)",
    )


def test_a_cell_without_forward_is_refused() -> None:
    class Empty(lp.Cell):
        pass

    said(ArgumentError, lambda: lp.Recurrent(Empty(h=3))(X), "the cell has no forward.", "Empty (test_results.py, line")


def test_a_network_of_torch_is_no_cell() -> None:
    for use in (lp.Recurrent, lambda module: lp.fold(module, X)):
        said(
            ArgumentError,
            lambda use=use: use(nn.GRU(3, 4)),
            "torch.nn.GRU reads a whole sequence",
            "lp.from_torch(module)",
        )


def test_a_cell_of_torch_returns_one_value_and_the_way_out_is_named() -> None:
    net = lp.Recurrent(nn.GRUCell(3, 4))
    said(ArgumentError, lambda: net(X, torch.zeros(2, 4)), "one value: float32 [batch, 4]", "lp.from_torch(cell)")
    pair = torch.zeros(2, 4), torch.zeros(2, 4)
    said(
        StateMismatch, lambda: lp.Recurrent(nn.LSTMCell(3, 4))(X, pair), "changes its structure", "lp.from_torch(cell)"
    )
    said(MissingState, lambda: net(X), "lp.Recurrent(lp.from_torch(cell))")


def test_a_feedback_that_names_no_leaf_is_refused() -> None:
    class Misnamed(steps.Good):
        feedback = "o"

    said(
        ArgumentError,
        lambda: lp.Recurrent(Misnamed())(X, targets=torch.zeros(5, 2, 4)),
        "the cell's feedback 'o' is no leaf of its state.",
        "expected  'h'",
    )


@pytest.mark.parametrize("name", ["class", "_h"])
def test_a_leaf_needs_a_name_of_its_own(name: str) -> None:
    said(ArgumentError, lambda: lp.Cell(**{name: 3}), f"'{name}' is no name for a state leaf.")


@pytest.mark.parametrize("size", [0, -1, (3, 0), 2.5, "3"], ids=repr)
def test_a_leaf_needs_a_size(size: object) -> None:
    said(ArgumentError, lambda: lp.Cell(h=size), "the state leaf 'h' has no valid size.", f"came      {size!r}")
