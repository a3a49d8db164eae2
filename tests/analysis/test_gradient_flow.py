"""`gradient_flow`: the norms of dL(t)/dh(k) beside autograd, the rates that theory knows, and what is said of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.analysis import gradient_flow, sweeps
from leporello.analysis.step_by_step import StepByStepRun
from tests.analysis.nets import RADII, WITH_STATE, elman, example, linear, normal, orthogonal, slow_flow

CLOSE = {"rtol": 1e-8, "atol": 1e-10}  # float64; norms of order 1


def square(output: Tensor) -> Tensor:
    return output.square().sum(-1)


@pytest.mark.parametrize("name", WITH_STATE)
def test_norms_are_those_of_one_autograd_call_per_loss_and_state(name: str) -> None:
    net, inputs = example(name), normal(6, 3, 3)
    draws = net.draw(inputs)
    flow = gradient_flow(net, inputs, square, draws=draws)
    whole, leaves = slow_flow(net, inputs, square, draws)
    torch.testing.assert_close(flow.norms, whole, **CLOSE)
    assert list(flow.leaves) == net.cell.state_names()
    for result, wanted in zip(flow.leaves.values(), leaves, strict=True):
        torch.testing.assert_close(result, wanted, **CLOSE)


@pytest.mark.parametrize("radius", RADII)
def test_the_rate_of_a_linear_net_with_orthogonal_weights_is_the_radius(radius: float) -> None:
    flow = gradient_flow(linear(radius * orthogonal(7)), normal(30, 2, 3), square)
    assert flow.rate == pytest.approx(radius, rel=1e-9)
    torch.testing.assert_close(flow.gains, torch.full((29,), radius, dtype=torch.float64), rtol=1e-9, atol=0)
    torch.testing.assert_close(flow.left, radius ** torch.arange(30, dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("radius", RADII)
def test_the_rate_of_an_elman_net_at_rest_is_the_radius(radius: float) -> None:
    """Without input the state stays 0, where tanh is the identity: dh'/dh = W, normal here."""
    W = orthogonal(7) @ torch.diag(torch.linspace(0.2, 1, 7, dtype=torch.float64)) @ orthogonal(7).T
    flow = gradient_flow(elman(radius * W), torch.zeros(120, 2, 3, dtype=torch.float64), lambda output: output.sum(-1))
    assert flow.rate == pytest.approx(radius, rel=2e-3)
    assert flow.gains[0].item() == pytest.approx(radius, rel=5e-3)


@pytest.mark.parametrize("radius", RADII)
def test_inputs_that_saturate_an_elman_net_make_gradients_shrink_faster(radius: float) -> None:
    flow = gradient_flow(elman(radius * orthogonal(16)), 2 * normal(40, 4, 3), square)
    assert flow.rate < 0.9 * radius


def test_verdicts_name_the_rate_and_what_follows() -> None:
    said = [gradient_flow(linear(r * orthogonal(4)), normal(30, 1, 3), square).verdict for r in RADII]
    assert said == [
        "each step back keeps 0.5 of the gradient: after 7 steps 1% is left",
        "the gradient neither shrinks nor grows: 29 steps back it is as large",
        "each step back multiplies the gradient by 1.5: after 18 steps it is 1,000 times as large",
    ]


def test_the_horizon_is_where_one_hundredth_is_left() -> None:
    flow = gradient_flow(linear(0.9 * orthogonal(4)), normal(60, 1, 3), square)
    assert flow.horizon == pytest.approx(math.log(0.01) / math.log(0.9), rel=1e-9)
    assert flow.left[math.ceil(flow.horizon)] < 0.01 < flow.left[math.floor(flow.horizon)]
    assert gradient_flow(linear(orthogonal(4)), normal(9, 1, 3), square).horizon > 1e6


def test_a_net_of_delays_alone_ends_the_gradient() -> None:
    flow = gradient_flow(example("TimeDelay"), normal(9, 2, 3), square)
    assert (flow.horizon, flow.verdict) == (3, "the gradient ends: 3 steps back nothing is left")


def test_one_step_has_nothing_to_go_back_through() -> None:
    flow = gradient_flow(example("Elman"), normal(1, 1, 3), square)
    assert flow.norms.shape == (1, 1)
    assert flow.gains.shape == (0,)
    assert flow.verdict == "one step: the gradient has no steps to go back through"
    assert "1 loss over 1 row" in str(flow)


def test_it_reads_well() -> None:
    flow = gradient_flow(linear(0.5 * orthogonal(4)), normal(12, 3, 3), square)
    assert str(flow) == (
        "each step back keeps 0.5 of the gradient: after 7 steps 1% is left.\n"
        "  steps back    1    2   5     10\n"
        "  left        50%  25%  3%  1e-03\n"
        "  12 losses over 3 rows, in float64"
    )
    assert repr(flow) == str(flow)


def test_each_leaf_of_the_state_is_told_of() -> None:
    said = str(gradient_flow(example("LSTM"), normal(12, 3, 3), square))
    assert "  in h " in said
    assert "  in c " in said
    assert "one step multiplies it by" in said


def test_every_step_is_taken_once_in_the_sweep_back(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    step = StepByStepRun.step

    def counted(self: StepByStepRun, time: int, *args: object, **options: object) -> object:
        taken.append(time)
        return step(self, time, *args, **options)

    monkeypatch.setattr(StepByStepRun, "step", counted)
    gradient_flow(linear(orthogonal(4)), normal(63, 1, 3), square)
    assert taken == list(reversed(range(63)))


def test_losses_in_several_stretches_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = example("GRU"), normal(7, 3, 3)
    whole = gradient_flow(net, inputs, square)
    for rows in (1, 6, 20):
        monkeypatch.setattr(sweeps, "MAX_ROWS_AT_ONCE", rows)
        torch.testing.assert_close(gradient_flow(net, inputs, square).norms, whole.norms, rtol=1e-12, atol=0)


def test_a_loss_may_have_targets_and_be_one_of_torchs() -> None:
    net, inputs, targets = example("RNN"), normal(5, 3, 3), normal(5, 3, 5, seed=9)
    wanted = gradient_flow(net, inputs, lambda o, y: (o - y).square().mean(-1), targets=targets).norms
    for loss in (nn.functional.mse_loss, nn.MSELoss(), lambda o, y: (o - y).square()):
        torch.testing.assert_close(gradient_flow(net, inputs, loss, targets=targets).norms, wanted)


def test_targets_are_fed_back_where_forcing_asks_for_it() -> None:
    net, inputs, targets = example("Jordan"), normal(5, 3, 3), normal(5, 3, 2, seed=9)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum(-1)

    free = gradient_flow(net, inputs, loss, targets=targets)
    forced = gradient_flow(net, inputs, loss, targets=targets, forcing=1)
    assert free.norms[4, 0] > 0
    assert torch.equal(forced.norms, torch.diag(forced.norms.diagonal()))
    assert forced.verdict == "nothing of the gradient passes from one step to the one before"


def test_a_net_in_float32_is_looked_at_in_float64_and_stays_as_it_is() -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.GRU(3, 5))
    inputs = torch.randn(6, 2, 3)
    flow = gradient_flow(net, inputs, square)
    assert flow.norms.dtype == torch.float64
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    assert all(parameter.grad is None for parameter in net.parameters())
    wide = lp.Recurrent(net.cell.double())
    torch.testing.assert_close(gradient_flow(wide, inputs.double(), square).norms, flow.norms, rtol=1e-12, atol=0)


def test_it_works_where_gradients_are_switched_off() -> None:
    net, inputs = example("GRU"), normal(5, 2, 3)
    wanted = gradient_flow(net, inputs, square).norms
    with torch.no_grad():
        assert torch.equal(gradient_flow(net, inputs, square).norms, wanted)
