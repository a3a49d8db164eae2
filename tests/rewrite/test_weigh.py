"""weigh: what step t passes back to step t-1 is multiplied by ξ(t), one weight per row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.rewrite import differentiate, weigh
from tests.close import assert_close
from tests.rewrite.running import loop_of, numbers, run

LENGTH, BATCH = 6, 3
X, START, ARRIVING = numbers(LENGTH, BATCH, 2), numbers(2, BATCH, 4, seed=1), numbers(LENGTH, BATCH, 4, seed=2)
BORDERS = torch.ones(LENGTH, BATCH).double()
BORDERS[2, 0] = BORDERS[4, 0] = BORDERS[3, 1] = 0
WEIGHTS = {
    "full": torch.ones(LENGTH, BATCH).double(),
    "cut at borders of its own in each row": BORDERS,
    "cut everywhere": torch.zeros(LENGTH, BATCH).double(),
    "weighed at random": 2 * BORDERS * numbers(LENGTH, BATCH, seed=3).abs(),
}


def scaled(value: Tensor, weight: Tensor) -> Tensor:
    """The value itself, its gradient times the weight: with weight 0 the value detached."""
    return value.detach() + weight.unsqueeze(1) * (value - value.detach())


def by_autograd(cell: lp.LSTM, weights: Tensor) -> dict[str, Tensor]:
    x, state = X.clone().requires_grad_(), [leaf.clone().requires_grad_() for leaf in START]
    h, c, total = *state, torch.zeros(())
    for time in range(LENGTH):
        output, (h, c) = cell(x[time], (scaled(h, weights[time]), scaled(c, weights[time])))
        total = total + (output * ARRIVING[time]).sum()
    total = total + h.sum() + 2 * c.sum()
    names = ["x", "final h", "final c", *(name for name, _ in cell.named_parameters())]
    return dict(zip(names, torch.autograd.grad(total, [x, *state, *cell.parameters()]), strict=True))


def by_weighing(cell: lp.LSTM, weights: Tensor) -> dict[str, Tensor]:
    loop = loop_of(cell, X)
    befores, (h, c) = [], START
    with torch.no_grad():
        for time in range(LENGTH):
            befores.append((h, c))
            _, (h, c) = cell(X[time], (h, c))
    values = {
        "input.x": X,
        "before.h": torch.stack([h for h, _ in befores]),
        "before.c": torch.stack([c for _, c in befores]),
        "grad.o": ARRIVING,
        "h": torch.ones_like(START[0]),
        "c": 2 * torch.ones_like(START[0]),
        "call.weight": weights,
    }
    with torch.no_grad():
        return run(weigh(differentiate(loop)), values, dict(cell.named_parameters()))


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_scale_the_gradient_that_passes_back(name: str) -> None:
    cell = lp.LSTM(2, 4).double()
    found, wanted = by_weighing(cell, WEIGHTS[name]), by_autograd(cell, WEIGHTS[name])
    assert_close({key: found[key] for key in wanted}, wanted, "gradient of")


def test_a_net_without_state_has_nothing_to_weigh() -> None:
    loop = differentiate(loop_of(lp.Perceptron(2, 4, 3), X))
    assert weigh(loop) is loop


def test_a_weight_on_the_delay_keeps_the_split() -> None:
    loop = differentiate(loop_of(lp.Elman(2, 4, 3), X))
    before, after = loop.split().inside, weigh(loop).split().inside
    assert before is not None
    assert after is not None
    assert after.products == before.products == ["W"]
