"""One output per row, at the row's own end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.nets.twins import ENGINES, close, gradients, normal, shaken, somewhere, state_like


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.calls = nn.Linear(4, 2), 0

    def forward(self, state: Any) -> Tensor:
        self.calls += 1
        return self.read(state.h)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_head_reads_each_rows_own_end_and_runs_once(engine: str) -> None:
    net = shaken(lp.Summary(lp.LSTM(3, 4), Counted(), engine=engine))
    whole = lp.Recurrent(net.net.cell.cell, engine="reference")
    x, state = normal(6, 3, 3, grad=True), state_like(net, 3)
    for lengths in (None, [6, 1, 3]):
        before = net.head.calls
        got = net(x, state, lengths=lengths, resets=somewhere(6, 3))
        assert net.head.calls == before + 1
        assert got[0].shape == (3, 2)
        final = whole(x, state, lengths=lengths, resets=somewhere(6, 3))[1]
        wanted = net.head.read(final.h), final
        close(got, wanted)
        sources = [x, *net.parameters()]
        close(gradients(got, sources), gradients(wanted, sources))


def test_a_row_that_ended_knows_nothing_of_what_follows() -> None:
    net = shaken(lp.Summary(lp.GRU(3, 4), nn.Identity()))
    x = normal(6, 3, 3)
    other = x.clone()
    other[2:, 1] = torch.nan
    close(net(x, lengths=[6, 2, 3])[0], net(other, lengths=[6, 2, 3])[0], tolerance=0)
    close(net(x, lengths=[6, 2, 3])[0][1], net(x[:2])[0][1])


def test_the_output_of_the_cell_is_not_computed() -> None:
    net = lp.Summary(lp.Elman(3, 4, 2), nn.Linear(4, 5))
    net(normal(3, 2, 3).float())[0].sum().backward()
    assert net.net.cell.cell.V.grad is None
    assert net.net.cell.cell.W.grad is not None


def test_the_head_may_be_a_function() -> None:
    net = lp.Summary(lp.GRU(3, 4), lambda h: h.sum(-1))
    output, final = net(normal(3, 2, 3).float())
    close(output, final.sum(-1), tolerance=0)


def test_a_cell_with_feedback_can_be_forced() -> None:
    cell = lp.Jordan(3, 4, 2).double()
    y = normal(3, 2, 2, seed=4)
    output, final = lp.Summary(cell, lambda o: 2 * o)(normal(3, 2, 3), targets=y)
    close(final, y[-1], tolerance=0)
    close(output, 2 * y[-1], tolerance=0)


def test_what_is_fed_back_is_fed_in_a_summary_too() -> None:
    class Choosing(lp.Cell):
        feedback = "o"

        def __init__(self) -> None:
            super().__init__(o=3)

        def feed(self, output: Tensor) -> Tensor:
            return torch.softmax(output, -1)

        def forward(self, x: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
            return x + o, o

    x = normal(3, 2, 3)
    close(lp.Summary(Choosing(), nn.Identity())(x)[0], lp.Recurrent(Choosing())(x)[1], tolerance=0)


def test_the_explanation_names_the_head() -> None:
    assert "the head, once" in lp.Summary(lp.GRU(3, 4), nn.Identity()).explain(normal(3, 2, 3).float())
