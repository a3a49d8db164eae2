"""associate: brackets that let what does not wait leave the loop, without a change beyond rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leporello as lp
from leporello.rewrite.associate import associate
from tests.close import TOLERANCE
from tests.nets.twins import quickly
from tests.rewrite.running import loop_of, numbers

Step = Callable[["Written", Tensor, Tensor], Tensor]
X = numbers(5, 3, 4)


class Written(lp.Cell):
    """h' = function(cell, x, h), with a matrix and a vector to use."""

    def __init__(self, function: Step) -> None:
        super().__init__(h=4)
        self.W, self.a = nn.Parameter(numbers(4, 4, seed=1) / 4), nn.Parameter(numbers(4, seed=2))
        self.function = function

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.function(self, x, h))
        return h, h


STEPS: dict[str, Step] = {
    "a mask and a number": lambda cell, x, h: F.dropout(h, 0.3),
    "two masks": lambda cell, x, h: h * (x > 0) * (x > 0.3) + h * (x > 0.5),
    "numbers alone": lambda cell, x, h: 0.9 * h * 2 + h * 3 + x,
    "a number and a parameter": lambda cell, x, h: 0.9 * h + h * cell.a + x,
    "constants of another dtype": lambda cell, x, h: h * torch.tensor([0.1, 0.2, 0.3, 0.4]) * torch.tensor(0.7) + x,
    "terms of another dtype": lambda cell, x, h: h @ cell.W + torch.tensor([0.1, 0.2, 0.3, 0.4]) + h * cell.a,
    "integers": lambda cell, x, h: h * cell.a + torch.tensor([1, 2, 3, 4]),
    "two slopes of relu": lambda cell, x, h: torch.relu(h) - torch.relu(-h) + x,
    "negatives": lambda cell, x, h: torch.neg(torch.neg(h * x)) * cell.a,
    "a product used twice": lambda cell, x, h: h * x + torch.sin(h * x) * cell.a,
    "a bias and an input": lambda cell, x, h: torch.addmm(cell.a, h, cell.W) + x,
}


QUICK = (
    "two masks",
    "a number and a parameter",
    "terms of another dtype",
    "two slopes of relu",
    "a product used twice",
)


@pytest.mark.parametrize("name", quickly(STEPS, *QUICK))
def test_brackets_change_nothing_but_rounding(name: str) -> None:
    net = lp.Recurrent(Written(STEPS[name]), engine="stepwise")
    report = lp.check_gradients(net, X, numbers(3, 4, seed=3))
    assert report.worst <= TOLERANCE[torch.float64], report


def test_factors_that_do_not_wait_are_multiplied_outside() -> None:
    inside = associate(loop_of(Written(lambda cell, x, h: (h * x) * cell.a), X)).split().inside
    assert inside is not None
    assert inside.operators == ["mul", "tanh"]


def test_terms_that_do_not_wait_are_added_outside() -> None:
    inside = associate(loop_of(Written(lambda cell, x, h: (h @ cell.W + cell.a) + x), X)).split().inside
    assert inside is not None
    assert inside.operators == ["addmm", "tanh"]
