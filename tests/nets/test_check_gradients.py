"""The check that users can call: an engine against the plain loop in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine import autograd
from leporello.errors import GradientMismatch
from leporello.nets import check_gradients
from leporello.nets.check_gradients import GradientReport
from tests.nets.test_dtypes import Rotating
from tests.nets.twins import ENGINES, normal, shaken, somewhere


@pytest.mark.parametrize("engine", ENGINES)
def test_a_right_engine_agrees(engine: str) -> None:
    net = lp.Recurrent(lp.Stack(lp.ZoneoutLSTM(3, 4), lp.Jordan(4, 3, 2), dropout=0.5), engine=engine)
    x, y = normal(5, 3, 3).float(), normal(5, 3, 2, seed=2).float()
    report = lp.check_gradients(net, x, lengths=[5, 2, 4], resets=somewhere(5, 3), targets=y, forcing=0.5, raises=True)
    assert report.ok
    assert report.worst < 1e-4
    assert report.engine == engine
    assert set(report.outputs) == {"o", "final 0.h", "final 0.c", "final 1.o"}
    assert {"x", "0.h", "cells.0.U", "cells.1.W"} <= set(report.gradients)
    assert "agrees with the plain loop" in str(report)


def test_the_check_leaves_the_net_as_it_was() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), batch_first=True)
    x = normal(2, 3, 3).float()
    before = torch.get_rng_state()
    assert lp.check_gradients(net, x).ok
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None and parameter.dtype == torch.float32 for parameter in net.parameters())
    assert not x.requires_grad
    with torch.no_grad():
        assert lp.check_gradients(net, x).ok


def test_complex_nets_are_checked_as_complex_ones() -> None:
    report = lp.check_gradients(lp.Recurrent(Rotating()), normal(4, 2, 3, dtype=torch.complex128), raises=True)
    assert report.worst < 1e-12


def test_an_engine_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    net, right = lp.Recurrent(shaken(lp.GRU(3, 4))), autograd.call

    def wrong(*args: Any) -> list[torch.Tensor]:
        outputs, final = right(*args)
        return [outputs + 0.1 * (outputs - outputs.detach()), final]  # the value is right, its gradient is not

    monkeypatch.setattr(autograd, "call", wrong)
    report = lp.check_gradients(net, normal(4, 2, 3))
    assert not report.ok
    assert max(report.outputs.values()) < 1e-12
    assert report.gradients["W"] > 1e-3
    assert "DIFFERS" in str(report)
    with pytest.raises(GradientMismatch, match="differ from the plain loop"):
        lp.check_gradients(net, normal(4, 2, 3), raises=True)


@pytest.mark.parametrize("place", [0, 1])
def test_a_gradient_that_alone_is_nan_is_found(place: int) -> None:
    """No number is larger than NaN, and none smaller."""
    nan = torch.tensor([1.0, float("nan")])
    sides = (nan, torch.ones(2)) if place else (torch.ones(2), nan)
    report = GradientReport("cpu", 1e-9, gradients={"W": check_gradients._error(*sides, 0.0), "b": 0.0})
    assert not report.ok
    assert GradientReport("cpu", 1e-9, gradients={"W": check_gradients._error(nan, nan.clone(), 0.0)}).ok


def test_a_gradient_that_is_zero_but_for_rounding_agrees() -> None:
    """A bias before a softmax moves nothing."""

    class Chooses(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.W, self.b = torch.nn.Linear(3, 4), torch.nn.Parameter(torch.zeros(1))

        def forward(self, x, h):
            h = torch.softmax(self.W(x) + h + self.b, -1)
            return h, h

    report = lp.check_gradients(lp.Recurrent(Chooses()), torch.randn(9, 2, 3))
    assert report.ok, str(report)
    assert report.gradients["b"] < 1e-3


def test_boolean_states_and_writes_in_place_are_compared() -> None:
    def step(x, state):
        h, seen = state
        h.mul_(0.5).add_(x)
        seen |= h > 0
        x.zero_()
        return h * seen, (h, seen)

    state = torch.randn(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    before = [leaf.clone() for leaf in state]
    assert lp.check_gradients(lp.Recurrent(step), torch.randn(5, 2, 3), state).ok
    assert all(map(torch.equal, state, before))


@pytest.mark.parametrize("requires", [False, True])
def test_resets_to_the_state_of_the_call(requires: bool) -> None:
    """Of a step that makes none: its gradient is the sum over all resets."""

    def step(x, h):
        h = torch.tanh(x + 0.5 * h)
        return h, h

    state = torch.randn(2, 3).requires_grad_(requires)
    report = lp.check_gradients(lp.Recurrent(step), torch.randn(5, 2, 3), state, resets=torch.ones(5, 2).bool())
    assert report.ok, str(report)


def test_resets_to_a_state_that_the_cell_makes_of_its_parameters() -> None:
    class Own(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4, c=4)
            self.cell, self.first = nn.LSTMCell(3, 4), nn.Parameter(torch.randn(4))

        def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> tuple[Tensor, Tensor]:
            return self.first.expand(batch, -1), torch.zeros(batch, 4, device=device, dtype=dtype)

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, list[Tensor]]:
            h, c = self.cell(x, (state.h, state.c))
            return h, [h, c]

    report = lp.check_gradients(lp.Recurrent(Own()), torch.randn(5, 3, 3), resets=torch.rand(5, 3) < 0.4)
    assert report.ok, report
    assert "first" in report.gradients


def test_a_net_in_float64_reads_constants_of_float32_as_they_are() -> None:
    """The product of two numbers of float32 is rounded to float32 in every loop."""
    rate, step_size = torch.tensor(1 / 3), torch.tensor(0.7)

    def step(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v = v + rate * step_size * (x - v)
        return v, v

    assert lp.check_gradients(lp.Recurrent(step), normal(5, 2, 3), normal(2, 3)).worst < 1e-14
    assert lp.check_gradients(lp.Recurrent(step), normal(5, 2, 3).float(), normal(2, 3).float()).ok


def test_a_step_that_writes_over_values_that_its_gradient_needs() -> None:
    """As steps for inference do, which keep their states in place."""

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h.copy_(h * torch.sigmoid(x) + x)
        h[:, 1:] = h[:, 1:] * h[:, :-1]
        return h, h

    net = lp.Recurrent(step)
    report = lp.check_gradients(net, normal(5, 2, 3), normal(2, 3), resets=somewhere(5, 2))
    assert report.ok
    assert "gradients with those of the engine reference" in str(report)
    assert net.engine == "auto"
