"""A parameter whose early effect is the opposite of its late one: who looks back too few steps learns the wrong way.

Of 23 numbers in a row each takes half of its right neighbour's, and θ pushes the first ten up, the last thirteen down.
The first number should stay at 1. After one step it rises with θ, after forty it has begun to fall, in the end it falls
by six times θ: the right θ is -1/6. (Tallec and Ollivier 2017, Unbiased Online Recurrent Optimization.)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import leporello as lp

LOOKED_BACK = (1, 10, 20, 40, 41, 50, 100)


class Balance(lp.Cell):
    """s' = A s + θ v;  o = s'_1."""

    def __init__(self) -> None:
        super().__init__(s=23)
        self.theta = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("A", 0.5 * torch.eye(23) + 0.5 * torch.diag(torch.ones(22), 1))
        self.register_buffer("v", torch.cat([torch.ones(10), -torch.ones(13)]))

    def forward(self, x, s):
        s = s @ self.A.T + self.theta * self.v
        return s[:, 0], s

    def initial_state(self, batch, *, device=None, dtype=None):
        return torch.ones(batch, 23, device=device, dtype=dtype)


def loss(output, target):
    return 0.5 * (output - target).square().sum()


def effect(steps: int) -> float:
    """What θ does to the output, as seen by who looks back so many steps."""
    net = lp.Recurrent(Balance(), gradient=lp.Truncated(steps))
    outputs, _ = net(None, steps=3 * steps)
    return torch.autograd.grad(outputs[-1].sum(), net.cell.theta)[0].item()


def trained(how: int | lp.RTRL | lp.UORO, rate: float, updates: int) -> Iterator[float]:
    """θ after each update: on windows of so many steps, the loss at their end; or online, after every step."""
    net, state = lp.Recurrent(Balance(), gradient=lp.Truncated(how) if isinstance(how, int) else None), None
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    learner = None if isinstance(how, int) else lp.online(net, how, loss)
    for _ in range(updates):
        if learner is None:
            outputs, state = net(None, state, steps=how)
            loss(outputs[-1], 1.0).backward()
        else:
            learner.step(None, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield net.cell.theta.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=3000, help="of θ, 3000 by default; ten times as many for UORO")
    updates = parser.parse_args().updates
    torch.manual_seed(0)
    torch.set_num_threads(1)
    console = Console(highlight=False)
    seen = Table("looked back", *map(str, LOOKED_BACK), box=box.SIMPLE_HEAD)
    seen.add_row("effect of θ", *(f"{effect(steps):+.3f}" for steps in LOOKED_BACK))
    console.print("What θ does to the first number, by the steps looked back. In truth it is -6.", seen)
    learned = Table("gradient", "rate", "updates", "θ, from 0.5", box=box.SIMPLE_HEAD)
    ways = [("windows of 10 steps", 10, 1e-4, updates), ("windows of 100 steps", 100, 1e-4, updates)]
    ways += [("RTRL, online", lp.RTRL(), 1e-4, updates), ("UORO, online", lp.UORO(), 1e-5, 10 * updates)]
    for name, how, rate, count in ways:
        *_, theta = track(trained(how, rate, count), f"{name:<20}", total=count, console=console)
        learned.add_row(name, f"{rate:g}", f"{count:,}", f"{theta:.5g}")
    console.print("\nWhat is learned. The right θ is -0.16667.", learned)


if __name__ == "__main__":
    main()
