"""The engine `exact`: rational numbers beside the other engines, and what it refuses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import leporello as lp
from leporello.engine import exact
from leporello.engine.rational import OPERATORS, Exact


class Halving(lp.Cell):
    def __init__(self) -> None:
        super().__init__(s=1)
        self.weight = nn.Parameter(torch.tensor([[0.5]]))

    def forward(self, x: Tensor | None, s: Tensor) -> tuple[Tensor, Tensor]:
        return s, s @ self.weight + 1


def test_results_are_those_of_the_reference() -> None:
    cell = lp.Stack(lp.turing.compile(lp.turing.machines.zigzag(), serial=True))
    rows = torch.randint(0, 3, (7, 4, 3)) * torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        found = lp.Recurrent(cell, engine="exact")(rows)
        torch.testing.assert_close(found, lp.Recurrent(cell, engine="reference")(rows))


aten = torch.ops.aten
ONE, OTHER, ROW = torch.randn(3, 4).double(), torch.randn(3, 4).double(), torch.randn(4).double()
SQUARE = torch.randn(4, 4).double()
CALLS = {
    aten.mm.default: ((ONE, SQUARE), {}),
    aten.addmm.default: ((ROW, ONE, SQUARE), {"beta": 2, "alpha": -0.5}),
    aten.add.Tensor: ((ONE, ROW), {"alpha": 3}),
    aten.sub.Tensor: ((ROW, ONE), {"alpha": 0.25}),
    aten.mul.Tensor: ((ONE.unsqueeze(1), OTHER), {}),
    aten.neg.default: ((ONE,), {}),
    aten.clamp.default: ((ONE, -0.5, 0.25), {}),
    aten.clamp_min.default: ((ONE, 0.25), {}),
    aten.clamp_max.default: ((ONE, 0.25), {}),
    aten.hardtanh.default: ((ONE, -0.5, 0.5), {}),
    aten.relu.default: ((ONE,), {}),
    aten.permute.default: ((ONE.view(3, 2, 2), [2, 0, -2]), {}),
    aten.t.default: ((ONE,), {}),
    aten.view.default: ((ONE, [2, -1, 3]), {}),
    aten.unsqueeze.default: ((ONE, -1), {}),
    aten.cat.default: (([ONE, SQUARE[:3, :2], OTHER], 1), {}),
}


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_every_operator_agrees_with_torch(operator: Any) -> None:
    arguments, options = CALLS[operator]
    numbers = tree_map(lambda value: Exact.of(value) if isinstance(value, Tensor) else value, arguments)
    found = OPERATORS[operator](*numbers, **options).tensor()
    torch.testing.assert_close(found, operator(*arguments, **options), rtol=1e-12, atol=1e-14)


def test_it_does_not_round() -> None:
    loop = lp.fold(Halving())
    outputs, last = exact.run(loop, {"s": Exact((1, 1), [0])}, length=200)
    assert last["s"].numbers == [2 - Fraction(1, 2**199)]
    assert outputs[3]["o"].numbers == [Fraction(7, 4)]
    with torch.no_grad():
        assert lp.Recurrent(Halving(), engine="exact")(None, steps=200)[1].item() == 2.0  # rounded at the end


def test_it_is_never_chosen_by_auto_and_explains_itself() -> None:
    net = lp.Recurrent(Halving())
    assert "exact" not in net.explain(None, steps=3)
    with torch.no_grad():
        assert "interprets the whole graph" in lp.Recurrent(Halving(), engine="exact").explain(None, steps=3)


def test_what_it_does_not_cover_is_refused_by_name() -> None:
    with pytest.raises(lp.errors.EngineRefusal, match=r"aten\.tanh\.default"):
        lp.Recurrent(lp.RNN(2, 3), engine="exact")(torch.zeros(4, 1, 2))
    with pytest.raises(lp.errors.EngineRefusal, match="no gradients"):
        lp.Recurrent(Halving(), engine="exact")(None, steps=3)
    noisy = lp.Recurrent(lambda x, s: (s, s + torch.randn_like(s)), engine="exact")
    with pytest.raises(lp.errors.EngineRefusal, match="a draw"):
        noisy(None, torch.zeros(1, 2), steps=3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_rational_are_refused(value: float) -> None:
    cell = Halving()
    with torch.no_grad():
        cell.weight.fill_(value)
        with pytest.raises(lp.errors.ArgumentError, match="'weight'"):
            lp.Recurrent(cell, engine="exact")(None, steps=3)


def test_a_missing_input_is_named() -> None:
    loop = lp.fold(lp.turing.compile(lp.turing.machines.zigzag(), serial=True), torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(lp.errors.ArgumentError, match="sequence 'x'"):
        exact.run(loop, {"h": Exact.zeros((1, 32))}, [{}])
