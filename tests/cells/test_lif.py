import math

import pytest
import torch

import leporello as lp
from leporello.cells import LIF
from leporello.errors import ArgumentError
from tests.cells.by_hand import product
from tests.cells.examples import assert_rows, lists, shaken, step_inputs

SURROGATES = {
    "fast sigmoid": (lp.surrogate.fast_sigmoid(5), lambda v: 1 / (1 + 5 * abs(v)) ** 2),
    "arctan": (lp.surrogate.arctan(3), lambda v: 1.5 / (1 + (math.pi * 1.5 * v) ** 2)),
    "straight through": (lp.surrogate.straight_through(), lambda v: 1.0),
    "boxcar": (lp.surrogate.boxcar(0.5), lambda v: 2.0 if abs(v) < 0.25 else 0.0),
}


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("recurrent", [True, False])
def test_a_step_follows_the_equations(reset: str, recurrent: bool) -> None:
    cell = shaken(LIF(3, 5, decay=0.75, threshold=0.5, reset=reset, recurrent=recurrent))
    x, state = step_inputs(cell, 4)
    v, z = state[0], (state[1] > 0).double()
    p, potentials, spikes = lists(cell), [], []
    for row, old, fired in zip(x.tolist(), v.tolist(), z.tolist(), strict=True):
        sent = product(p.W, fired) if recurrent else [0.0] * 5
        held = [0.75 * a * (1 - s) if reset == "zero" else 0.75 * a - 0.5 * s for a, s in zip(old, fired, strict=True)]
        new = [a + b + c + d for a, b, c, d in zip(product(p.U, row), p.b, sent, held, strict=True)]
        potentials.append(new)
        spikes.append([float(a > 0.5) for a in new])
    assert_rows(cell(x, (v, z)), spikes, potentials, spikes)


@pytest.mark.parametrize("name", SURROGATES)
def test_a_surrogate_is_a_step_forward_and_its_formula_backward(name: str) -> None:
    spike, derivative = SURROGATES[name]
    v = torch.tensor([-1.5, -0.2, 0.0, 0.1, 0.7], dtype=torch.float64, requires_grad=True)
    spikes = spike(v)
    assert spikes.tolist() == [0, 0, 0, 1, 1]
    found = torch.autograd.grad(spikes.sum(), v)[0].tolist()
    assert found == pytest.approx([derivative(value) for value in v.tolist()], rel=1e-12)


@pytest.mark.parametrize("name", SURROGATES)
def test_each_surrogate_runs_as_a_kernel_with_the_gradient_of_a_plain_loop(name: str) -> None:
    torch.manual_seed(1)
    net = lp.Recurrent(LIF(3, 5, surrogate=SURROGATES[name][0]), engine="cpu").double()
    assert lp.check_gradients(net, torch.randn(9, 2, 3, dtype=torch.float64)).ok


def test_each_neuron_may_have_its_own_decay() -> None:
    cell = LIF(2, 3, decay=[0.0, 0.5, 1.0], recurrent=False)
    v = torch.full((1, 3), 0.5)
    for parameter in cell.parameters():
        parameter.data.zero_()
    assert cell(torch.zeros(1, 2), (v, torch.zeros(1, 3)))[1][0].tolist() == [[0.0, 0.25, 0.5]]


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "slow", None, [0.5] * 4, torch.ones(6)], ids=repr)
def test_a_decay_outside_zero_to_one_is_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)'decay' is no decay of these neurons.*5 of them, from 0 to 1"):
        LIF(3, 5, decay=bad)


@pytest.mark.parametrize("bad", [0, -1, math.inf, "1", None], ids=repr)
def test_a_threshold_or_scale_that_is_not_positive_is_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match="'threshold' is no threshold"):
        LIF(3, 5, threshold=bad)
    with pytest.raises(ArgumentError, match="'slope' is no scale of a surrogate gradient"):
        lp.surrogate.fast_sigmoid(bad)


@pytest.mark.parametrize("bad", ["arctan", 2.0, torch.nn.ReLU], ids=repr)
def test_a_surrogate_that_is_no_function_is_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)'surrogate' is no function.*lp.surrogate.fast_sigmoid"):
        LIF(3, 5, surrogate=bad)


def test_an_unknown_reset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"(?s)'reset' is not known.*'subtract', 'zero'"):
        LIF(3, 5, reset="hard")
