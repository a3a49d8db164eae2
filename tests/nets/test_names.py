"""Names a user may choose: those that the library uses inside itself must not get in their way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import leporello as lp


class Borrowed(lp.Cell):
    """A cell whose states, parameters, inputs and outputs are called what rewrites call theirs."""

    def __init__(self) -> None:
        super().__init__(before=3, saved=3)
        self.before, self.input = nn.Linear(3, 3), nn.Linear(3, 3)
        self.grad, self.draw = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        h, g = state
        h = torch.tanh(self.before(h) + self.input(x["call"]) + self.grad(g) * x["saved.0"])
        g = torch.sigmoid(self.draw(h + g))
        return {"saved": (h, g * 2), "call": {"saved": h * g}}, (h, g)


def test_names_that_rewrites_use_can_be_the_users_too() -> None:
    net = lp.Recurrent(Borrowed().double())
    inputs = {name: torch.randn(5, 2, 3, dtype=torch.float64) for name in ("call", "saved.0")}
    resets = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]]).bool()
    for arguments in ({}, {"lengths": [5, 3], "resets": resets}):
        report = lp.check_gradients(net, inputs, **arguments)
        assert report.worst < 1e-10, report
