"""Initial states that are parameters."""

from __future__ import annotations

import functools

import pytest
import torch

import leporello as lp
from tests.nets.twins import agrees_with_the_plain_loop, close, crossed, normal, said, shaken, somewhere, state_like

MADE = {
    "LSTM": lambda: lp.LSTM(3, 4, learned=True),
    "Jordan": lambda: lp.Jordan(3, 4, 2, learned=True),
    "TimeDelay": lambda: lp.TimeDelay(3, 2, 3, learned=True),
    "a stack": lambda: lp.Stack(lp.GRU(3, 4), lp.RNN(4, 2, learned=True)),
}


@functools.cache
def net_of(name: str, engine: str) -> lp.Recurrent:
    return lp.Recurrent(shaken(MADE[name]()), engine=engine)


@pytest.mark.parametrize(("name", "engine"), crossed(MADE, cpu=["LSTM"], stepwise=["a stack"]))
def test_a_learned_state_gets_the_gradients_of_the_plain_loop(name: str, engine: str) -> None:
    net, x = net_of(name, engine), normal(5, 3, 3, grad=True)
    calls = {
        "from the start": (None, {}),
        "through resets": (None, {"resets": somewhere(5, 3), "lengths": [5, 2, 4]}),
        "through resets alone": (state_like(net, 3), {"resets": somewhere(5, 3)}),
    }
    for call, (state, arguments) in calls.items():
        with said(call):
            agrees_with_the_plain_loop(net, x, state, **arguments)


def test_each_reset_adds_to_the_gradient() -> None:
    """A state that only counts: its gradient is the number of times that it began."""

    class Count(lp.Cell):
        def __init__(self) -> None:
            super().__init__(n=1, learned=True)

        def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return n, n + x

    net = lp.Recurrent(Count())
    resets = torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]]).bool()
    outputs, _ = net(torch.ones(4, 2, 1), resets=resets)
    outputs.sum().backward()
    assert net.cell.initial["n"].grad.item() == 8
    net.zero_grad()
    _, final = net(torch.ones(4, 2, 1), torch.zeros(2, 1), resets=resets)
    final.sum().backward()
    assert net.cell.initial["n"].grad.item() == 2
    net.zero_grad()
    net(torch.ones(4, 2, 1), torch.zeros(2, 1))[0].sum()
    assert net.cell.initial["n"].grad is None


def test_no_gradient_crosses_a_reset() -> None:
    net = net_of("LSTM", "stepwise")
    x = normal(5, 1, 3, grad=True)
    resets = torch.zeros(5, 1, dtype=torch.bool)
    resets[3] = True
    net(x, resets=resets)[0][4].sum().backward()
    assert (x.grad[:3] == 0).all()
    assert (x.grad[3:] != 0).all()


def test_the_initial_state_follows_the_inputs_dtype() -> None:
    cell = lp.GRU(3, 4, learned=True).double()
    assert cell.initial_state(2, dtype=torch.float32).dtype == torch.float32
    assert cell.initial_state(2).dtype == torch.float64
    cell.initial["h"].data.fill_(0.5)
    close(lp.Recurrent(cell).initial_state(2), torch.full((2, 4), 0.5, dtype=torch.float64), tolerance=0)


def test_a_learned_state_is_trained() -> None:
    net = lp.Recurrent(lp.RNN(1, 1, learned=True)).double()
    optimiser = torch.optim.SGD(net.cell.initial.parameters(), lr=1.0)
    x = torch.zeros(1, 4, 1, dtype=torch.float64)
    losses = []
    for _ in range(50):
        optimiser.zero_grad()
        loss = (net(x)[0] - 0.2).pow(2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
