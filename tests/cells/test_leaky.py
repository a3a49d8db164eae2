import math

import pytest
import torch

from leporello.cells import Leaky
from leporello.loop.cell import collected_names
from tests.cells.by_hand import mix, product, relu, softplus, tanh, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs

BY_HAND = {"tanh": tanh, "relu": relu, "softplus": softplus}
sizes = pytest.mark.parametrize(("inputs", "hidden", "outputs", "batch"), SIZES)
every_f = pytest.mark.parametrize("nonlinearity", BY_HAND)


@sizes
@every_f
def test_a_step_of_rates_follows_the_equations(inputs, hidden, outputs, batch, nonlinearity) -> None:
    cell = shaken(Leaky(inputs, hidden, outputs, alpha=0.1, nonlinearity=nonlinearity))
    x, h = step_inputs(cell, batch)
    p, f = lists(cell), BY_HAND[nonlinearity]
    after = [
        mix(0.1, f(total(product(p.W, old), product(p.U, row), p.b)), old)
        for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h), [total(p.c, product(p.V, row)) for row in after], after)


@sizes
@every_f
def test_a_step_of_currents_follows_the_equations(inputs, hidden, outputs, batch, nonlinearity) -> None:
    cell = shaken(Leaky(inputs, hidden, outputs, alpha=0.1, form="current", nonlinearity=nonlinearity))
    x, h = step_inputs(cell, batch)
    p, f = lists(cell), BY_HAND[nonlinearity]
    after = [
        mix(0.1, total(product(p.W, f(old)), product(p.U, row), p.b), old)
        for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h), [total(p.c, product(p.V, f(row))) for row in after], after)


def test_rates_and_tanh_are_the_default() -> None:
    cell = Leaky(3, 5, 2, alpha=0.5)
    assert (cell.form, cell.nonlinearity, cell.noise) == ("rate", "tanh", 0.0)


@pytest.mark.parametrize("form", ["rate", "current"])
def test_each_unit_may_have_its_own_leak(form: str) -> None:
    alphas = [0.125, 0.25, 0.5, 0.75, 1.0]  # exact in every dtype
    cell = shaken(Leaky(3, 5, 2, alpha=alphas, form=form))
    x, h = step_inputs(cell, 3)
    single = shaken(Leaky(3, 5, 2, alpha=1.0, form=form))
    target = single(x, h)[1]  # at alpha = 1 all of a unit is new
    wanted = [mix(alphas, new, old) for new, old in zip(target.tolist(), h.tolist(), strict=True)]
    assert_rows(cell(x, h)[1], wanted)


def test_the_firing_rates_of_currents_have_a_name() -> None:
    cell = shaken(Leaky(3, 5, 2, alpha=0.1, form="current"))
    with collected_names() as heard:
        o, h = cell(*step_inputs(cell, 3))
    assert torch.equal(heard["r"], torch.tanh(h))
    torch.testing.assert_close(o, cell.c + heard["r"] @ cell.V.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", [0.001, 0.1, 0.5, 0.999, [0.01, 0.2, 0.5, 0.8, 0.99]])
def test_a_learned_leak_starts_at_what_was_given(given) -> None:
    alpha = Leaky(3, 5, 2, alpha=given, learn_alpha=True).alpha
    wanted = torch.tensor(given)
    assert alpha.shape == wanted.shape
    torch.testing.assert_close(alpha.detach(), wanted, rtol=1e-6, atol=0)


def test_a_learned_leak_learns_and_stays_between_zero_and_one() -> None:
    cell = Leaky(3, 5, 2, alpha=[0.1, 0.3, 0.5, 0.7, 0.9], learn_alpha=True)
    x, h = step_inputs(cell, 3)
    before = cell(x, h)[1]
    optimiser = torch.optim.SGD([cell.alpha_logit], lr=1.0)
    (cell(x, h)[1] ** 2).sum().backward()
    optimiser.step()
    assert not torch.equal(cell(x, h)[1], before)
    assert ((cell.alpha > 0) & (cell.alpha < 1)).all()


def test_a_fixed_leak_is_no_parameter() -> None:
    for alpha in (0.5, [0.5] * 5):
        assert {name for name, _ in Leaky(3, 5, 2, alpha=alpha).named_parameters()} == {"U", "W", "V", "b", "c"}


@pytest.mark.parametrize("form", ["rate", "current"])
def test_there_is_no_noise_in_eval(form: str) -> None:
    noisy, still = (shaken(Leaky(3, 5, 2, alpha=0.1, form=form, noise=noise)) for noise in (2.0, 0.0))
    x, h = step_inputs(noisy, 3)
    assert torch.equal(noisy(x, h)[1], still(x, h)[1])
    assert not torch.equal(noisy.train()(x, h)[1], still.train()(x, h)[1])


@pytest.mark.parametrize("alpha", [0.1, [0.1, 0.4, 0.9]])
def test_a_current_receives_the_langevin_term(alpha) -> None:
    cell = shaken(Leaky(1, 3, 1, alpha=alpha, form="current", noise=0.3))
    x, h = step_inputs(cell, 20001)
    still = cell(x, h)[1]
    torch.manual_seed(0)
    kicks = cell.train()(x, h)[1] - still
    wanted = 0.3 * (2 * torch.tensor(alpha, dtype=torch.float64)).sqrt().expand(3)
    assert kicks.std(0).tolist() == pytest.approx(wanted.tolist(), rel=0.03)  # 6 standard deviations of the estimate
    assert (kicks.mean(0).abs() < 6 * wanted / math.sqrt(20001)).all()
    correlations = torch.corrcoef(kicks.T) - torch.eye(3, dtype=torch.float64)
    assert correlations.abs().max() < 0.05  # each unit has a noise of its own


def test_noise_on_rates_stands_inside_the_nonlinearity() -> None:
    cell = shaken(Leaky(1, 3, 1, alpha=0.5, form="rate", nonlinearity="relu", noise=0.25)).train()
    for parameter in cell.parameters():
        parameter.data.zero_()
    h = torch.zeros(20001, 3, dtype=torch.float64)
    torch.manual_seed(0)
    after = cell(torch.zeros(20001, 1, dtype=torch.float64), h)[1]
    deviation = 0.25 * math.sqrt(2 / 0.5)  # of what relu reads; the mean of relu(deviation N) is deviation / sqrt(2 pi)
    assert (after >= 0).all()
    assert after.mean().item() == pytest.approx(0.5 * deviation / math.sqrt(2 * math.pi), rel=0.03)


def test_parameters_start_orthogonal_uniform_and_zero() -> None:
    cell = Leaky(4, 400, 2, alpha=0.1)
    W = cell.W.detach()
    torch.testing.assert_close(W @ W.T, torch.eye(400), rtol=0, atol=1e-4)
    assert 0.49 < cell.U.abs().max() <= 0.5
    assert 0.049 < cell.V.abs().max() <= 0.05
    assert not cell.b.any()
    assert not cell.c.any()
