"""lp.RandomTruncated: weights with mean 1, and a gradient that is exact on average."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors.said import said
from tests.nets.twins import ENGINES, close, normal, shaken

CPU = torch.device("cpu")
METHODS = {
    "number": lp.RandomTruncated(keep=0.7),
    "sequence": lp.RandomTruncated(keep=[0.9, 0.5, 0.8, 1.0, 0.6, 0.7]),
    "schedule": lp.RandomTruncated(mean_length=3),
    "other schedule": lp.RandomTruncated(mean_length=3, alpha=6),
}


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_0_or_make_up_for_it(name: str) -> None:
    """Every weight's mean is 1, within 4 standard errors of 200,000 draws."""
    torch.manual_seed(0)
    weights = METHODS[name].weights(6, 200_000, CPU, torch.float64)
    assert weights.shape == (6, 200_000)
    error = weights.std(1) / weights.shape[1] ** 0.5
    assert ((weights.mean(1) - 1).abs() <= 4 * error + 1e-12).all()
    if name == "number":
        assert set(weights.flatten().tolist()) == {0, 1 / 0.7}
    if name == "sequence":
        assert weights[3].eq(1).all()


@pytest.mark.parametrize("alpha", [4, 6])
def test_the_schedule_cuts_as_its_formula_says(alpha: float) -> None:
    torch.manual_seed(0)
    length, mean = 12, 5
    weights = lp.RandomTruncated(mean_length=mean, alpha=alpha).weights(length, 100_000, CPU, torch.float64)
    since = torch.zeros(100_000, dtype=torch.long)
    for time in range(length):
        since += 1
        cut = weights[time] == 0
        for steps in range(1, time + 2):
            here = since == steps
            chance = (alpha - 1) / ((alpha - 2) * mean + steps)
            count = int(here.sum())
            if count > 1000:
                share = cut[here].double().mean().item()
                assert abs(share - chance) < 4 * (chance * (1 - chance) / count) ** 0.5, (time, steps)
                kept = weights[time, here & ~cut]
                torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - chance)))
        since = torch.where(cut, 0, since)


def test_the_mean_stretch_is_as_long_as_asked() -> None:
    torch.manual_seed(0)
    weights = lp.RandomTruncated(mean_length=10, alpha=6).weights(20_000, 40, CPU, torch.float32)
    assert 9.5 < weights.numel() / int((weights == 0).sum()) < 10.5


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
@pytest.mark.parametrize("name", METHODS)
def test_the_mean_of_many_draws_is_the_exact_gradient(name: str, engine: str) -> None:
    """All coordinates within 4 standard errors, so many draws that a twentieth of the gradient would be seen."""
    torch.manual_seed(1)
    cell = shaken(lp.Elman(2, 3, 2))
    copies, rounds = 500, 40
    inputs = normal(6, 1, 2).expand(6, copies, 2).contiguous()
    state = normal(1, 3, seed=3).expand(copies, 3).contiguous().requires_grad_()
    sources = [*cell.parameters(), state]

    net = lp.Recurrent(cell, engine=engine)

    def gradient(method: Any) -> list[Tensor]:
        outputs, _ = net(inputs, state, gradient=method)
        found = torch.autograd.grad(outputs.square().sum() / copies, sources)
        return [*found[:-1], found[-1].sum(0)]

    exact = gradient(lp.Full())
    net_draws = [gradient(METHODS[name]) for _ in range(rounds)]
    for index, wanted in enumerate(exact):
        drawn = torch.stack([found[index] for found in net_draws])
        error = drawn.std(0) / rounds**0.5
        assert ((drawn.mean(0) - wanted).abs() <= 4 * error + 1e-12).all(), index
        assert (4 * error).max() <= 0.05 * wanted.abs().max(), "too few draws to see a bias"


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_draw_on_their_own_and_calls_anew(engine: str) -> None:
    cell = shaken(lp.RNN(2, 3))
    net = lp.Recurrent(cell, gradient=lp.RandomTruncated(keep=0.5), engine=engine)
    row = normal(9, 1, 2)
    x = row.expand(9, 4, 2).contiguous().requires_grad_()
    torch.manual_seed(0)
    first, second = (torch.autograd.grad(net(x)[0].sum(), x)[0] for _ in range(2))
    torch.manual_seed(0)
    again = torch.autograd.grad(net(x)[0].sum(), x)[0]
    close(again, first, tolerance=0)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])


def test_without_gradients_nothing_is_drawn() -> None:
    net = lp.Recurrent(lp.RNN(2, 3), gradient=lp.RandomTruncated())
    before = torch.get_rng_state()
    with torch.no_grad():
        net(torch.zeros(5, 2, 2))
    assert torch.equal(before, torch.get_rng_state())


def test_methods_are_compared_by_value() -> None:
    assert lp.RandomTruncated() == lp.RandomTruncated(keep=0.97)
    assert lp.RandomTruncated(keep=torch.tensor([0.5, 1.0])) == lp.RandomTruncated(keep=[0.5, 1])
    assert repr(lp.RandomTruncated(mean_length=50)) == "RandomTruncated(mean_length=50)"
    assert len({lp.RandomTruncated(keep=0.9), lp.RandomTruncated(keep=0.9)}) == 1


@pytest.mark.parametrize("keep", [0, -0.1, 1.5, "0.9", [0.5, 2], [], True, torch.tensor([0.5, 0.0])], ids=repr)
def test_what_is_no_probability_is_refused(keep: Any) -> None:
    said(ArgumentError, lambda: lp.RandomTruncated(keep=keep), "the argument 'keep' holds no probabilities.")


def test_a_sequence_of_another_length_is_refused() -> None:
    net = lp.Recurrent(lp.RNN(2, 3), gradient=lp.RandomTruncated(keep=[0.5, 0.5]))
    said(ArgumentError, lambda: net(torch.zeros(5, 2, 2)), "2 probabilities", "5, one for each step")


def test_a_schedule_out_of_range_is_refused() -> None:
    said(ArgumentError, lambda: lp.RandomTruncated(mean_length=0.5), "'mean_length' is no length", "at least 1")
    said(ArgumentError, lambda: lp.RandomTruncated(mean_length=5, alpha=2), "'alpha' is out of range", "above 2")
    said(ArgumentError, lambda: lp.RandomTruncated(keep=0.9, mean_length=5), "one of the two")
