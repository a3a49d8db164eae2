"""The rewrite `rank_one`: the mean over all signs there are is the gradient itself, to the last digits.

Two numbers of state and three steps have 64 sequences of signs: each is a row of one batch, and nothing is drawn.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.targets import target_of
from leporello.gradient.forward_in_time import CarryingLoop
from leporello.rewrite.forward_in_time.linearize import Linear
from leporello.rewrite.forward_in_time.rank_one import SIGN, TANGENT, rank_one
from tests.nets.twins import normal, shaken
from tests.rewrite.running import loop_of

LENGTH = 3


class Pausing(lp.Cell):
    """At its second step it depends on no parameter at all; at its first its state vanishes."""

    def __init__(self) -> None:
        super().__init__(h=2)
        self.inputs = 2
        self.W, self.b = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = x[:, :1] * h + x[:, 1:] * torch.tanh(h @ self.W + self.b)
        return h, h


CELLS = {"GRU": lambda: lp.GRU(2, 2), "LSTM": lambda: lp.LSTM(2, 1), "Pausing": Pausing}


def inputs_of(name: str) -> Tensor:
    """One row; for `Pausing` factors of the state and of what is added to it, zeros among them."""
    pausing = torch.tensor([[[0.0, 1.0]], [[0.7, 0.0]], [[0.5, 1.0]]], dtype=torch.float64)
    return pausing if name == "Pausing" else normal(LENGTH, 1, 2)


def signs(count: int) -> Tensor:
    """All sequences of so many signs, as numbers between 0 and 1: [sequences, count]."""
    return torch.tensor(list(itertools.product([0.25, 0.75], repeat=count)), dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("LSTM", "stepwise"),
        ("GRU", "reference"),
        ("Pausing", "stepwise"),
        ("Pausing", "reference"),
        pytest.param("LSTM", "reference", marks=pytest.mark.slow),
        pytest.param("GRU", "stepwise", marks=pytest.mark.slow),
    ],
)
def test_the_mean_over_all_signs_is_the_gradient(name: str, engine: str) -> None:
    cell, x = shaken(CELLS[name]()), inputs_of(name)
    loop = loop_of(cell, x)
    linear = Linear(loop, [port.kind in ("invariant", "state") for port in loop.inputs])
    drawn = signs((LENGTH + 1) * linear.size)
    first, later = drawn[:, : linear.size], drawn[:, linear.size :]
    rows = len(drawn)
    states = {port.name: 0.3 * normal(*port.shape, seed=4 + i) for i, port in enumerate(linear.states)}
    at_outputs = normal(LENGTH, 1, *loop.outputs[0].shape, seed=3)

    values: dict[Any, Tensor] = {("sequence", "x"): x.expand(LENGTH, rows, 2)}
    values["sequence", f"grad.{loop.outputs[0].name}"] = at_outputs.expand(LENGTH, rows, -1)
    values["draw", SIGN] = later.unflatten(1, (LENGTH, linear.size)).transpose(0, 1)
    values |= {("invariant", each): value for each, value in cell.named_parameters()}
    values |= {("state", each): value.expand(rows, -1) for each, value in states.items()}
    tangent = 2 * (first > 0.5).double() - 1
    values |= {key: torch.zeros_like(v) for key, v in lp.UORO().beginning(linear, rows).items()}
    values["state", TANGENT] = tangent
    for port in linear.states:
        values["state", f"trace of the state {port.name}"] = tangent[:, linear.place(port)]

    found = CarryingLoop.of(linear, rank_one(linear), target_of(engine)).run(values, LENGTH, rows)
    sources = [*cell.parameters(), *(state.unsqueeze(0).requires_grad_() for state in states.values())]
    begun = sources[-len(states) :]
    outputs, _ = lp.Recurrent(cell, engine="reference")(x, begun[0] if len(begun) == 1 else tuple(begun))
    wanted = torch.autograd.grad((outputs * at_outputs).sum(), sources)
    names = [*dict(cell.named_parameters()), *(f"the state {each}" for each in states)]
    for each, exact in zip(names, wanted, strict=True):
        estimate = found["total", each] if each in dict(cell.named_parameters()) else found["total", each].sum(0)
        torch.testing.assert_close(estimate.view_as(exact) / rows, exact, rtol=1e-11, atol=1e-12, msg=each)


def test_an_initial_state_alone_needs_no_signs() -> None:
    loop = loop_of(lp.GRU(2, 2), normal(LENGTH, 1, 2))
    carrying = rank_one(Linear(loop, [port.kind == "state" for port in loop.inputs]))
    assert not [port for port in carrying.inputs if port.kind == "draw"]


def test_nothing_is_divided_by_zero() -> None:
    """Everything is zero: inputs, parameters, the state."""
    net = lp.Recurrent(lp.GRU(2, 3, learned=True), gradient=lp.UORO())
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    outputs, _ = net(torch.zeros(5, 2, 2))
    outputs.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
