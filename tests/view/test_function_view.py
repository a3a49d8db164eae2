"""The whole step as one f: what goes in, what goes round, and what a teacher feeds back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

import leporello as lp
from tests.view.figures import lines, said

SEQUENCE, TARGETS = torch.zeros(5, 2, 3), torch.zeros(5, 2, 2)
CALLS: dict[str, dict[str, Any]] = {
    "alone": {},
    "with lengths": {"lengths": torch.tensor([5, 3])},
    "with resets": {"resets": torch.zeros(5, 2, dtype=torch.bool)},
    "with a loss": {"loss": mse_loss},
}


def test_several_states_are_one_s() -> None:
    loop = lp.fold(lp.LSTM(3, 4), torch.zeros(2, 3))
    assert said(loop.picture("function")) == lines("s -> s: 1 later; x -> s: f")
    assert {spot.tooltip for spot in loop.picture("function").spots} == {"", "h, c"}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_forced_output_reads_the_true_value_and_not_itself(call: dict[str, Any]) -> None:
    loop = lp.fold(lp.Recurrent(lp.Jordan(3, 4, 2)), SEQUENCE, targets=TARGETS, **call)
    assert said(loop.picture("function")) == lines("y -> o: 1 later; x -> o: f")
    assert said(loop.unfold(2).picture("function", ends=False)) == lines(
        "x(t-1) -> o(t-1); y(t-1) -> o(t): f; x(t) -> o(t)"
    )


def test_an_output_forced_now_and_then_reads_both() -> None:
    loop = lp.fold(lp.Recurrent(lp.Jordan(3, 4, 2)), SEQUENCE, targets=TARGETS, forcing=0.5)
    assert said(loop.picture("function")) == lines("o -> o: 1 later; x -> o: f; y -> o: f")


def test_a_state_beside_the_forced_one_goes_round() -> None:
    loop = lp.fold(lp.Recurrent(lp.ElmanJordan(3, 4, 2)), SEQUENCE, targets=TARGETS)
    assert said(loop.picture("function")) == lines("h -> h: 1 later; y -> h: 1 later; x -> h: f")


def test_a_target_that_only_the_loss_reads_is_no_part_of_f() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), torch.zeros(2, 3), loss=mse_loss)
    assert said(loop.picture("function")) == lines("h -> h: 1 later; x -> h: f")
