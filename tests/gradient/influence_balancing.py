"""A linear system in which truncation gets the sign of the gradient wrong (Tallec and Ollivier 2017, section 4.2).

Of 23 numbers the first ten pull the first one up with θ; the last thirteen, which act later, pull it down, in the end
by more. Who looks back some steps only believes the first ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp

BEST = -1 / 6  # where the first number stays at 1


class Balance(lp.Cell):
    """s' = A s + θ v;  o = s'_1.  A is 1/2 on the diagonal and above it, v is +1 ten times, then -1 thirteen times."""

    def __init__(self, theta: float = 0.5) -> None:
        super().__init__(s=23)
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))
        self.register_buffer("A", 0.5 * torch.eye(23).double() + 0.5 * torch.eye(23).double().roll(1, 1).triu(1))
        self.register_buffer("v", torch.cat([torch.ones(10), -torch.ones(13)]).double())

    def forward(self, x: Any, s: Tensor) -> tuple[Tensor, Tensor]:
        s = s @ self.A.T + self.theta * self.v
        return s[:, 0], s

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.ones(batch, 23, device=device, dtype=torch.float64)


def loss(output: Tensor, target: float) -> Tensor:
    return 0.5 * (output - target).square().sum()


def sensitivity(steps: int, engine: str = "stepwise") -> float:
    """d o / d θ, long after the beginning, by what is at most so many steps back."""
    net = lp.Recurrent(Balance(), gradient=lp.Truncated(steps), engine=engine)
    outputs, _ = net(None, steps=3 * steps)
    (found,) = torch.autograd.grad(outputs[-1].sum(), net.cell.theta)
    return found.item()


def trained_on_windows(steps: int, rate: float, updates: int) -> float:
    """θ after so many calls of a window each, the loss at its end; as soon as it is beyond a million."""
    net = lp.Recurrent(Balance(), gradient=lp.Truncated(steps), engine="stepwise")
    optimizer, state = torch.optim.SGD(net.parameters(), lr=rate), None
    for _ in range(updates):
        outputs, state = net(None, state, steps=steps)
        loss(outputs[-1], 1.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        if net.cell.theta.abs() > 1e6:
            break
    return net.cell.theta.item()


def trained_online(method: Any, rate: float, updates: int, engine: str = "stepwise") -> float:
    """θ after so many steps, with an update after each."""
    net = lp.Recurrent(Balance(), engine=engine)
    learner, optimizer = lp.online(net, method, loss), torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(updates):
        learner.step(None, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return net.cell.theta.item()
