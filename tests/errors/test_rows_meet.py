"""Steps in which rows of a batch influence each other: refused by `stepwise`, right on `reference`, chosen by auto."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import RowsMeet
from leporello.loop.cell import Cell
from tests.errors import steps
from tests.errors.said import said

MEETING: dict[str, tuple[Callable[[], Cell], str]] = {
    "mean": (steps.Centred, "'o' of a row changes with the other rows of the batch"),
    "state": (steps.First, "'h' of a row changes with the other rows of the batch"),
    "batch norm": (lambda: steps.Normed(track=False), "'o' of a row changes with the other rows of the batch"),
    "number": (steps.Divided, "the number of rows in the batch is used as a number in div"),
    "if": (steps.Large, f"the step decides by the number of rows in the batch ({steps.line('Large')})"),
    "if not one": (steps.Several, f"the step decides by the number of rows in the batch ({steps.line('Several')})"),
    "if one": (steps.Single, f"the step decides by the number of rows in the batch ({steps.line('Single')})"),
    "len": (steps.Counted, f"the step decides by the number of rows in the batch ({steps.line('Counted')})"),
    "distances": (steps.Distant, f"the step decides by the number of rows in the batch ({steps.line('Distant')})"),
    "for": (steps.EachRow, "the step decides by the number of rows in the batch"),
}
every_meeting = pytest.mark.parametrize(("make", "reason"), MEETING.values(), ids=MEETING.keys())


def plain(cell: Cell, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The loop one writes by hand."""
    state, outputs = cell.initial_state(inputs.shape[1]), []
    for x in inputs:
        output, state = cell.forward(x, state)
        outputs.append(output)
    return torch.stack(outputs), state


@every_meeting
def test_stepwise_refuses_and_says_why(make: Callable[[], Cell], reason: str) -> None:
    cell = make()
    text = said(
        RowsMeet,
        lambda: lp.Recurrent(cell, engine="stepwise")(torch.randn(3, 5, steps.INPUTS)),
        "rows of the batch influence each other in this step.",
        steps.place(type(cell)),
        reason,
    )
    assert 'engine="reference"' in text


@pytest.mark.kernels
@every_meeting
def test_auto_runs_it_on_reference_and_says_why(make: Callable[[], Cell], reason: str) -> None:
    text = lp.Recurrent(make()).explain(torch.randn(3, 5, steps.INPUTS))
    assert "engine   reference (chosen by auto; not cpu or stepwise: " in text
    assert reason in text


@every_meeting
def test_reference_is_right_for_every_batch(make: Callable[[], Cell], reason: str) -> None:
    cell = make().double()
    net = lp.Recurrent(cell)
    for batch in (5, 1, 2, 5, 3):
        if batch == 1 and isinstance(cell, steps.Normed):
            continue  # torch refuses to normalise one row
        inputs = torch.randn(4, batch, steps.INPUTS, dtype=torch.float64)
        outputs, state = net(inputs)
        by_hand, last = plain(cell, inputs)
        torch.testing.assert_close(outputs, by_hand, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)
        gradients = torch.autograd.grad(
            outputs.sum() + state.square().sum(), list(cell.parameters()), allow_unused=True
        )
        wanted = torch.autograd.grad(by_hand.sum() + last.square().sum(), list(cell.parameters()), allow_unused=True)
        for found, right in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("step", [steps.Centred, steps.First, steps.Divided, steps.Large])
def test_resets_and_lengths_work_where_rows_meet(step: Callable[[], Cell], batch: int) -> None:
    net = lp.Recurrent(step().double())
    inputs = torch.randn(4, batch, steps.INPUTS, dtype=torch.float64)
    lengths, resets = torch.randint(1, 5, (batch,)), torch.rand(4, batch) < 0.5
    assert lp.check_gradients(net, inputs, lengths=lengths, resets=resets).ok


def test_batch_norm_in_eval_keeps_rows_apart() -> None:
    cell = steps.Normed(track=True).eval()
    net = lp.Recurrent(cell, engine="stepwise")
    for batch in (1, 2, 5):
        inputs = torch.randn(4, batch, steps.INPUTS)
        torch.testing.assert_close(net(inputs)[0], plain(cell, inputs)[0])


@pytest.mark.kernels
@pytest.mark.parametrize(
    "step", [steps.Good, steps.AssertedSizes, lambda: lp.GRU(3, 4), lambda: lp.LayerNormLSTM(3, 4)]
)
def test_a_step_whose_rows_stay_apart_runs_on_kernels(step: Callable[[], Cell]) -> None:
    assert "engine   cpu (chosen by auto" in lp.Recurrent(step()).explain(torch.randn(3, 5, 3))
