"""UORO through the public interface: the mean of many backward passes is the gradient, each pass is its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from tests.nets.twins import close, gradients, normal, shaken, somewhere, thoroughly

pytestmark = pytest.mark.usefixtures("_one_thread")
ENGINES = ("stepwise", *thoroughly("reference"))
CALLS, COPIES = 40, 1500  # 60,000 draws: copies of one row in one batch have signs of their own


def estimates(cell: lp.Cell, x: Tensor, at_outputs: Tensor, engine: str, **arguments: Any) -> tuple[Tensor, Tensor]:
    """Of the gradients of all parameters, in one vector: the exact one, and one mean over the copies for each call."""
    net = lp.Recurrent(cell, gradient=lp.UORO(), engine=engine)
    wide = {name: value.expand(-1, COPIES) for name, value in arguments.items()}
    found = []
    for _ in range(CALLS):
        outputs, _ = net(x.expand(-1, COPIES, -1), **wide)
        made = torch.autograd.grad((outputs * at_outputs).sum() / COPIES, list(cell.parameters()))
        found.append(torch.cat([gradient.flatten() for gradient in made]))
    outputs, _ = lp.Recurrent(cell)(x, **arguments)
    exact = torch.autograd.grad((outputs * at_outputs).sum(), list(cell.parameters()))
    return torch.cat([gradient.flatten() for gradient in exact]), torch.stack(found)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mean_of_many_draws_is_the_gradient(engine: str) -> None:
    """Within four standard errors in every coordinate; these are so small that a bias of 5% would be seen."""
    cell = shaken(lp.GRU(2, 2, learned=True))
    resets = somewhere(5, 1)
    resets[0] = False
    exact, found = estimates(cell, normal(5, 1, 2), normal(5, 1, 2, seed=3), engine, resets=resets)
    errors = found.std(0) / CALLS**0.5
    assert ((found.mean(0) - exact).abs() <= 4 * errors + 1e-12).all()
    large = exact.abs() > 0.3 * exact.abs().max()
    assert large.sum() >= 5
    assert (4 * errors < 0.05 * exact.abs())[large].all()


def test_gradients_within_one_step_have_no_noise() -> None:
    """Those of a readout, and of a sequence of one step."""
    cell, x = shaken(lp.Elman(3, 4, 2)), normal(7, 3, 3)
    net, full = lp.Recurrent(cell, gradient=lp.UORO()), lp.Recurrent(cell)
    close(gradients(net(x), [cell.V, cell.c]), gradients(full(x), [cell.V, cell.c]), 1e-12, "gradient")
    every = list(cell.parameters())
    close(gradients(net(x[:1])[0], every), gradients(full(x[:1])[0], every), 1e-12, "gradient")


def test_every_backward_pass_draws_its_own_signs_and_a_seed_repeats_them() -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4)), gradient=lp.UORO()), normal(7, 3, 3)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(gradients(net(x), [net.cell.W])[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_outputs_are_those_of_full() -> None:
    cell, x = shaken(lp.LSTM(3, 4)), normal(7, 3, 3)
    close(lp.Recurrent(cell, gradient=lp.UORO())(x), lp.Recurrent(cell)(x), tolerance=0)


@pytest.mark.parametrize("engine", [*ENGINES, "cpu"])
def test_the_same_signs_give_the_same_on_every_engine(engine: str) -> None:
    cell, x = shaken(lp.LSTM(3, 4)), normal(7, 3, 3)
    found = []
    for each in (engine, "reference"):
        torch.manual_seed(0)
        net = lp.Recurrent(cell, gradient=lp.UORO(), engine=each)
        found.append(gradients(net(x, lengths=[7, 2, 4]), list(cell.parameters())))
    if engine == "reference":
        close(found[0], found[1], tolerance=0)
    else:  # signs of a whole stretch are drawn there in one piece: the same numbers in the same order
        close(found[0], found[1], 1e-10, "gradient")
