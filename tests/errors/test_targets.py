"""Targets and forcing of the wrong form, or for a cell that feeds nothing back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors import steps
from tests.errors.said import said

X, Y = torch.randn(5, 2, 3), torch.randn(5, 2, 4)


def jordan(**options: Any) -> lp.Recurrent:
    return lp.Recurrent(lp.Jordan(3, 6, 4), **options)


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        (lp.Elman(3, 4, 4), steps.place(lp.Elman)),
        (steps.Good(), steps.place(steps.Good)),
        (lambda x, h: (h, h), "<lambda> (test_targets.py, line"),
    ],
    ids=["built-in", "own", "function"],
)
def test_targets_for_a_cell_that_feeds_nothing_back_are_refused(cell: Any, place: str) -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(cell)(X, torch.zeros(2, 4), targets=Y),
        "the argument 'targets' is passed, but this cell feeds nothing back.",
        place,
        "lp.Feedback(cell)",
    )


@pytest.mark.parametrize(
    "targets",
    [
        Y[:4],
        Y[:, :1],
        torch.randn(5, 2, 3),
        torch.randn(5, 2),
        torch.zeros(5, 2, dtype=torch.bool),
        Y[0],
        Y.to(torch.cfloat),
    ],
    ids=["length", "batch", "features", "float classes", "bool classes", "one step", "complex"],
)
def test_targets_of_the_wrong_form_are_refused(targets: torch.Tensor) -> None:
    said(
        ArgumentError,
        lambda: jordan()(X, targets=targets),
        "the argument 'targets' has the wrong form.",
        f"{str(targets.dtype).removeprefix('torch.')} {list(targets.shape)}",
        "expected  float32 (5, 2, 4), like what is fed back; or classes 0 to 3 as integers (5, 2)",
    )


def test_targets_that_are_no_tensor_are_refused() -> None:
    said(
        ArgumentError,
        lambda: jordan()(X, targets=[1, 2]),
        "the argument 'targets' is no tensor.",
        "came      [int, int]",
    )


def test_whole_numbers_in_the_fed_back_shape_are_fine() -> None:
    whole = torch.randint(2, (5, 2, 4))
    net = jordan()
    assert torch.equal(net(X, targets=whole)[0], net(X, targets=whole.float())[0])


@pytest.mark.parametrize("wrong", [4, -1])
def test_a_class_that_does_not_exist_is_refused_where_it_stands(wrong: int) -> None:
    targets = torch.randint(4, (5, 2))
    targets[3, 1] = wrong
    text = said(
        ArgumentError,
        lambda: jordan()(X, targets=targets),
        "the argument 'targets' holds a class that does not exist.",
        f"came      {wrong} in row 1 at step 3",
        "expected  from 0 to 3: 4 values are fed back",
    )
    assert ("forcing=mask" in text) == (wrong < 0)


@pytest.mark.parametrize("forcing", [1.5, -0.1, math.nan, "0.5", [1, 0], torch.tensor(2.0)], ids=repr)
def test_forcing_that_is_no_probability_is_refused(forcing: Any) -> None:
    said(
        ArgumentError,
        lambda: jordan()(X, targets=Y, forcing=forcing),
        "the argument 'forcing' is no probability.",
        f"came      {forcing!r}",
        "expected  a number from 0 to 1, or bool (5, 2)",
    )


def test_a_mask_of_the_wrong_shape_or_kind_is_refused() -> None:
    said(
        ArgumentError,
        lambda: jordan()(X, targets=Y, forcing=torch.zeros(2, 5, dtype=torch.bool)),
        "the argument 'forcing' has the wrong shape.",
        "expected  bool (5, 2): (length, batch)",
    )
    said(
        ArgumentError,
        lambda: jordan()(X, targets=Y, forcing=torch.zeros(5, 2)),
        "the argument 'forcing' is not boolean.",
        "forcing.bool()",
    )


def test_forcing_without_targets_is_refused() -> None:
    said(
        ArgumentError,
        lambda: jordan()(X, forcing=0.5),
        "the argument 'forcing' stands without targets.",
        "pass targets=",
    )


def test_targets_are_checked_where_nothing_is_forced_too() -> None:
    said(ArgumentError, lambda: jordan()(X, targets=Y[:4], forcing=0), "the argument 'targets' has the wrong form.")


@pytest.mark.parametrize("forcing", [0, 1, 0.5, True, torch.tensor(0.5), torch.tensor(True)], ids=repr)
def test_every_way_to_write_a_probability_runs(forcing: Any) -> None:
    assert jordan()(X, targets=Y, forcing=forcing)[0].shape == (5, 2, 4)


def test_with_batch_first_shapes_are_spoken_of_as_written() -> None:
    net = jordan(batch_first=True)
    inputs = X.transpose(0, 1)
    said(
        ArgumentError,
        lambda: net(inputs, targets=Y),
        "came      float32 [5, 2, 4]",
        "float32 (2, 5, 4)",
        "integers (2, 5)",
    )
    said(
        ArgumentError,
        lambda: net(inputs, targets=Y.transpose(0, 1), forcing=torch.zeros(5, 2, dtype=torch.bool)),
        "came      bool [5, 2]",
        "expected  bool (2, 5): (batch, length)",
    )


def test_in_one_step_the_argument_is_called_target() -> None:
    net = jordan()
    said(
        ArgumentError,
        lambda: net.step(X[0], target=Y[0, :, :3]),
        "the argument 'target' has the wrong form.",
        "came      float32 [2, 3]",
        "expected  float32 (2, 4), like what is fed back; or classes 0 to 3 as integers (2,)",
    )
    said(ArgumentError, lambda: net.step(X[0], target=torch.tensor([0, 7])), "came      7 in row 1\n")
    said(ArgumentError, lambda: net.step(X[0], forcing=0.5), "the argument 'forcing' stands without target.")


def test_steps_and_targets_must_agree_without_inputs() -> None:
    net = lp.Recurrent(lp.Feedback(lp.LSTM(4, 4)))
    said(
        ArgumentError, lambda: net(None, targets=Y, steps=4), "the argument 'targets' has the wrong form.", "(4, 2, 4)"
    )
    assert net(None, targets=Y)[0].shape == (5, 2, 4)
