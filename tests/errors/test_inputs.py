"""Inputs of the wrong rank, size or kind; and what only looks wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors import steps
from tests.errors.said import said

ones = torch.ones


def elman(**options: Any) -> lp.Recurrent:
    return lp.Recurrent(lp.Elman(3, 4, 2), **options)


@pytest.mark.parametrize("sizes", [(3,), (5, 3), (5, 2, 3, 3)], ids=str)
def test_the_wrong_number_of_axes_is_refused(sizes: tuple[int, ...]) -> None:
    said(
        ArgumentError,
        lambda: elman()(ones(sizes)),
        "the argument 'inputs' has the wrong number of axes.",
        steps.place(lp.Elman),
        f"came      float32 {list(sizes)}",
        "expected  (length, batch, 3)",
    )


def test_a_missing_batch_axis_is_named() -> None:
    said(ArgumentError, lambda: elman()(ones(5, 3)), "inputs.unsqueeze(1) adds a batch axis")
    said(ArgumentError, lambda: elman(batch_first=True)(ones(5, 3)), "inputs.unsqueeze(0) adds a batch axis")


def test_the_wrong_number_of_features_is_refused() -> None:
    said(
        ArgumentError,
        lambda: elman()(ones(5, 2, 4)),
        "the argument 'inputs' has the wrong number of features.",
        "came      4 features: float32 [5, 2, 4]",
        "expected  3 features: (length, batch, 3)",
        "build the cell for 4 inputs",
    )


@pytest.mark.parametrize("sizes", [(5, 2, 4), (5, 3), (5, 2, 2, 3), (5, 2, 0)], ids=str)
def test_a_step_of_ones_own_that_fails_on_the_inputs_names_its_line(sizes: tuple[int, ...]) -> None:
    text = said(
        ArgumentError,
        lambda: lp.Recurrent(steps.Good())(ones(sizes)),
        "the step fails on these inputs.",
        steps.place(steps.Good),
        "return self.end(x, torch.tanh(self.U(x) + self.W(h)))",
        f"inputs  x float32 {['batch', *sizes[2:]]}".replace("'", ""),
        "state   h float32 [batch, 4]",
    )
    assert "batch" in text
    assert "FakeTensor" not in text


def test_a_sequence_of_one_axis_is_refused_for_any_step() -> None:
    said(ArgumentError, lambda: lp.Recurrent(steps.Good())(ones(3)), "wrong number of axes", "(length, batch, ...)")


@pytest.mark.parametrize(
    ("dtype", "says"),
    [
        (torch.float64, "to have the same dtype, but got: double != float"),
        (torch.int64, "to have the same dtype, but got: long int != float"),
    ],
)
def test_another_dtype_than_the_parameters_is_refused_at_the_line_where_they_meet(
    dtype: torch.dtype, says: str
) -> None:
    said(
        ArgumentError,
        lambda: elman()(ones(5, 2, 3).to(dtype)),
        "the step fails on these inputs.",
        ": a = self.b + x @ self.U.T + h @ self.W.T",
        says,
        "net.to(dtype)",
    )


@pytest.mark.parametrize(
    ("inputs", "came"),
    [
        (ones(5, 2, 3).numpy(), "ndarray"),
        ([[1.0, 2.0, 3.0]], "[[float, float, float]]"),
        ("abc", "str"),
        (3, "int"),
        ((ones(5, 2, 3), ones(5, 2, 3)), "(float32 [5, 2, 3], float32 [5, 2, 3])"),
        ({"a": ones(5, 2, 3)}, "{a: float32 [5, 2, 3]}"),
    ],
    ids=["numpy", "list", "text", "number", "tuple", "dict"],
)
def test_what_is_no_tensor_is_refused(inputs: Any, came: str) -> None:
    said(ArgumentError, lambda: elman()(inputs), "the argument 'inputs' is no tensor.", f"came      {came}")


def test_a_tree_with_something_else_in_it_is_refused_by_the_leafs_name() -> None:
    net = lp.Recurrent(lambda x, h: (h, h))
    inputs = {"a": ones(5, 2, 3), "b": (ones(5, 2), 3.0)}
    said(
        ArgumentError,
        lambda: net(inputs, ones(2, 4)),
        "the argument 'inputs' holds what is no tensor.",
        "came      float, at 'b.1'",
    )


def test_inputs_of_different_lengths_are_refused_by_name() -> None:
    net = lp.Recurrent(lambda x, h: (h, h))
    inputs = {"a": ones(5, 2, 3), "b": ones(4, 2)}
    said(
        ArgumentError,
        lambda: net(inputs, ones(2, 4)),
        "the inputs 'a' and 'b' differ in length or batch.",
        "length 5 and batch 2, length 4 and batch 2",
    )


def test_missing_inputs_are_refused() -> None:
    said(ArgumentError, lambda: elman()(None), "the argument 'inputs' is missing.", "expected  (length, batch, 3)")
    said(ArgumentError, lambda: elman()(None, steps=3), "the argument 'inputs' is missing.")


def autonomous() -> lp.Recurrent:
    return lp.Recurrent(lambda x, s: (s, 0.5 * s))


def test_a_call_without_inputs_needs_a_length() -> None:
    said(ArgumentError, lambda: autonomous()(None, ones(2, 4)), "a call without inputs needs a length.", "steps=10")


@pytest.mark.parametrize("steps_given", [0, -1, 2.0, "2", True], ids=repr)
def test_steps_that_are_no_length_are_refused(steps_given: Any) -> None:
    said(
        ArgumentError,
        lambda: autonomous()(None, ones(2, 4), steps=steps_given),
        "the argument 'steps' is no length.",
        f"came      {steps_given!r}",
        "expected  an integer of at least 1",
    )


def test_steps_that_contradict_the_inputs_are_refused() -> None:
    said(
        ArgumentError,
        lambda: elman()(ones(5, 2, 3), steps=4),
        "the argument 'steps' contradicts the inputs.",
        "steps=4 and inputs of 5 steps",
    )
    assert elman()(ones(5, 2, 3), steps=5)[0].shape == (5, 2, 2)


def test_a_sequence_without_steps_is_refused() -> None:
    said(ArgumentError, lambda: elman()(ones(0, 2, 3)), "the sequence has no steps.", "came      length 0")


@pytest.mark.parametrize(
    "net", [elman(), lp.Recurrent(steps.Good()), autonomous()], ids=["built-in", "own", "no input"]
)
def test_an_empty_batch_is_refused(net: lp.Recurrent) -> None:
    call = (lambda: net(ones(5, 0, 3))) if hasattr(net.cell, "U") else (lambda: net(None, ones(0, 4), steps=2))
    said(ArgumentError, call, "the batch is empty.", "came      0 rows", "expected  at least one row")


@pytest.mark.parametrize("engine", ["stepwise", "reference"])
def test_inputs_that_are_not_contiguous_run(engine: str) -> None:
    net = elman(engine=engine)
    inputs = torch.randn(3, 2, 5).movedim(2, 0).transpose(1, 2)
    assert not inputs.is_contiguous()
    torch.testing.assert_close(net(inputs)[0], net(inputs.contiguous())[0])
    spread = torch.randn(1, 1, 3).expand(5, 2, 3)
    torch.testing.assert_close(net(spread)[0], net(spread.contiguous())[0])


def test_a_cell_of_ones_own_may_mean_anything_by_inputs() -> None:
    class Channels(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=(4, 6))
            self.inputs = 3
            self.mix = torch.nn.Conv1d(7, 4, 1)

        def forward(self, x, h):
            h = torch.tanh(self.mix(torch.cat([x, h], 1)))
            return h, h

    assert Channels()(ones(2, 3, 6))[0].shape == (2, 4, 6)
    assert lp.Recurrent(Channels())(ones(5, 2, 3, 6))[0].shape == (5, 2, 4, 6)
    assert lp.Recurrent(lp.Stack(Channels()))(ones(5, 2, 3, 6))[0].shape == (5, 2, 4, 6)
