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
from leporello.nets.precision import EXACT, TOLERANCE
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


SINGLE, DOUBLE = "float32", "float64"


def _cast(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = torch.tanh(x.float() + 0.3 * h.float()).double()
    return h, h


def _divided_time(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = torch.tanh(x + h * torch.sin(lp.time() / 7))
    return h, h


def _wide_time(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = torch.tanh(x + h * torch.sin(lp.time().to(x.dtype) / 7))
    return h, h


def _second_output(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = torch.tanh(x + 0.3 * h)
    return (h, torch.sigmoid(h.float())), h


def _mask(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    """0 and 1 are exact in every precision."""
    spikes = (h > 0.1).float()
    return (spikes, torch.where(spikes > 0, 1.0, 0.0)), torch.tanh(x + h * spikes)


def _compared(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    """What is rounded reaches the results through a comparison alone."""
    h = torch.tanh(x + h * (torch.sigmoid(h.float()) > 0.5))
    return h, h


def _halved(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = torch.tanh(x + 0.3 * h.float() + 0.1 * h.bfloat16())
    return h, h


class _FloatBackward(torch.autograd.Function):
    """A gradient that is computed in float32, of a value in float64."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (u,) = ctx.saved_tensors
        return gradient * (1 / (1 + u.float().abs())).double()


def _own_gradient(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = 0.5 * h + _FloatBackward.apply(x + h)
    return h, h


def _no_rounding(x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
    h = torch.maximum(x, h)
    return h, h


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("step", "judged"),
    [
        (_cast, SINGLE),
        (_divided_time, SINGLE),
        (_wide_time, DOUBLE),
        (_second_output, SINGLE),
        (_mask, DOUBLE),
        (_compared, DOUBLE),
        (_own_gradient, SINGLE),
        (_no_rounding, DOUBLE),
    ],
)
def test_a_net_in_float64_is_judged_by_the_narrowest_precision_that_reaches_its_results(
    step: Any, judged: str, engine: str
) -> None:
    report = lp.check_gradients(lp.Recurrent(step, engine=engine), normal(9, 2, 3), normal(2, 3))
    assert report.ok, report
    assert report.tolerance == TOLERANCE[getattr(torch, judged)]
    assert f"what rounding to {judged} explains" in str(report)
    assert ("the step computes in it, test_check_gradients.py, line" in str(report)) == (judged != DOUBLE)


def test_the_narrowest_of_several_precisions_counts() -> None:
    report = lp.check_gradients(lp.Recurrent(_halved, engine="stepwise"), normal(9, 2, 3), normal(2, 3))
    assert report.ok, report
    assert report.precision is torch.bfloat16


def test_a_net_in_float32_is_judged_by_float32() -> None:
    report = lp.check_gradients(lp.Recurrent(lp.GRU(3, 4)), normal(5, 2, 3).float())
    assert report.precision is torch.float32
    assert "(tolerance 0.002, what rounding to float32 explains)" in str(report)


def test_a_parameter_of_float32_has_a_gradient_of_float32() -> None:
    class Scaled(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.scale = nn.Parameter(torch.rand(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + h * self.scale)
            return h, h

    report = lp.check_gradients(lp.Recurrent(Scaled()), normal(5, 2, 3), normal(2, 3))
    assert report.ok, report
    assert "the gradient of 'scale' is stored in it" in str(report)


def test_a_narrower_tolerance_still_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = autograd.call

    def wrong(*args: Any) -> list[torch.Tensor]:
        outputs, final = right(*args)
        return [outputs * 1.01, final]

    monkeypatch.setattr(autograd, "call", wrong)
    report = lp.check_gradients(lp.Recurrent(_cast), normal(9, 2, 3), normal(2, 3))
    assert not report.ok


@pytest.mark.parametrize("name", sorted(EXACT))
def test_operators_that_round_nothing_are_operators(name: str) -> None:
    own = {"convert_element_type", "broadcast_in_dim", "getitem", "stop", "own_gradient"}
    assert name in own or hasattr(torch.ops.aten, name)


@pytest.mark.parametrize("name", ["abs", "neg", "relu", "sign", "sgn", "ceil", "floor", "round", "trunc", "nan_to_num"])
def test_an_exact_operator_gives_in_float32_what_it_gives_in_float64(name: str) -> None:
    value = normal(7, 3).float()
    assert torch.equal(getattr(torch, name)(value).double(), getattr(torch, name)(value.double()))


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
