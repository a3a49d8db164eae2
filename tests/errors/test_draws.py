"""Given random numbers are as many, and of the form, that the steps ask for."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors.said import said

X = torch.randn(5, 2, 3)


@functools.cache
def noisy() -> lp.Recurrent:
    return lp.Recurrent(lp.ZoneoutLSTM(3, 4, zoneout_h=0.5, zoneout_c=0.5))


@pytest.mark.parametrize(
    ("draws", "came"),
    [
        ([], "came      0"),
        ([torch.rand(5, 2, 4)], "came      1"),
        ([torch.rand(5, 2, 4)] * 3, "came      3"),
        (torch.rand(5, 2, 4), "came      float32 [5, 2, 4]"),
    ],
    ids=["none", "one", "three", "tensor"],
)
def test_the_wrong_number_of_draws_is_refused(draws: Any, came: str) -> None:
    said(
        ArgumentError,
        lambda: noisy()(X, draws=draws),
        "the argument 'draws' has the wrong number of tensors.",
        came,
        "expected  a list of 2: uniform float32 (5, 2, 4), uniform float32 (5, 2, 4)",
        "net.draw(inputs, ...) makes them",
    )


def test_draws_for_a_step_that_draws_nothing_are_refused() -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    said(ArgumentError, lambda: net(X, draws=[torch.rand(5, 2, 4)]), "none: this step draws no random numbers")
    assert net(X, draws=[])[0].shape == (5, 2, 4)


@pytest.mark.parametrize(
    ("draw", "came"),
    [
        (torch.rand(4, 2, 4), "float32 [4, 2, 4]"),
        (torch.rand(5, 1, 4), "float32 [5, 1, 4]"),
        (torch.rand(5, 2, 3), "float32 [5, 2, 3]"),
        (torch.rand(5, 2, 4).double(), "float64 [5, 2, 4]"),
        (torch.rand(5, 2, 4, device="meta"), "float32 [5, 2, 4] on meta"),
        ("random", "str"),
    ],
    ids=["length", "batch", "features", "dtype", "device", "text"],
)
def test_a_draw_of_the_wrong_form_is_refused_by_index(draw: Any, came: str) -> None:
    said(
        ArgumentError,
        lambda: noisy()(X, draws=[torch.rand(5, 2, 4), draw]),
        "draws[1] has the wrong form.",
        f"came      {came}",
        "expected  uniform float32 (5, 2, 4)",
    )


def test_draws_made_for_the_call_repeat_it() -> None:
    net = noisy()
    draws = net.draw(X)
    assert torch.equal(net(X, draws=draws)[0], net(X, draws=draws)[0])
    state = None
    for t in range(5):
        output, state = net.step(X[t], state, draws=[draw[t] for draw in draws])
    torch.testing.assert_close(output, net(X, draws=draws)[0][-1])
