"""Dynamical systems without input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError, MissingState
from tests.nets.twins import ENGINES, agrees_with_the_plain_loop, close, normal, shaken


class System(nn.Module):
    """s(t+1) = tanh(A s(t) + b); the output is the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Linear(3, 3)

    def forward(self, x: Any, s: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.tanh(self.A(s))
        return s, s


@pytest.mark.parametrize("engine", ENGINES)
def test_two_steps_from_s1_give_s2_and_s3(engine: str) -> None:
    net = lp.Recurrent(shaken(System()), engine=engine)
    s1 = normal(2, 3, grad=True)
    s2 = torch.tanh(net.cell.A(s1))
    s3 = torch.tanh(net.cell.A(s2))
    outputs, final = net(None, s1, steps=2)
    close(outputs, torch.stack([s2, s3]))
    close(final, s3)
    agrees_with_the_plain_loop(net, None, s1, steps=5, lengths=[2, 5])
    agrees_with_the_plain_loop(net, None, s1, steps=4, resets=torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]]).bool())


def test_a_function_is_a_system_too() -> None:
    net = lp.Recurrent(lambda x, s: (s, 2 * s))
    assert net(None, torch.ones(1, 1), steps=4)[0].flatten().tolist() == [1.0, 2.0, 4.0, 8.0]
    output, state = net.step(None, torch.ones(1, 1))
    assert (output.item(), state.item()) == (1.0, 2.0)


def test_a_cell_begins_with_its_own_state() -> None:
    class Counter(lp.Cell):
        def __init__(self) -> None:
            super().__init__(n=1)

        def forward(self, x: Any, n: Tensor) -> tuple[Tensor, Tensor]:
            return n, n + 1

    outputs, final = lp.Recurrent(Counter())(steps=3)
    assert outputs.flatten().tolist() == [0.0, 1.0, 2.0]
    assert final.tolist() == [[3.0]]


def test_without_a_length_or_a_state_it_is_refused() -> None:
    net = lp.Recurrent(System())
    with pytest.raises(ArgumentError, match="needs a length"):
        net(None, torch.ones(1, 3))
    with pytest.raises(MissingState):
        net(None, steps=2)
    for steps in (0, -1, 2.0, True):
        with pytest.raises(ArgumentError, match="'steps' is no length"):
            net(None, torch.ones(1, 3), steps=steps)
    with pytest.raises(ArgumentError, match="contradicts"):
        lp.Recurrent(lp.GRU(3, 4))(torch.ones(3, 1, 3), steps=2)
