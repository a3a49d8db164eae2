"""Windows that overlap: lp.Truncated(steps, every=...) is BPTT(h; h') of Williams and Peng; every=1 is the cut sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors.said import said
from tests.gradient.by_hand import FEW_PAIRS, TOLERANCE, Case, Nets, filled
from tests.nets.twins import ENGINES, close, normal, shaken, somewhere, state_like

WINDOWS = ((1, 1), (3, 1), (4, 2), (5, 2), (5, 4), (6, 5), (100, 7))


def agrees(case: Case, steps: int, every: int, engine: str) -> None:
    found, wanted = case.by_net(lp.Truncated(steps, every=every), engine), case.by_hand(steps, every)
    close(
        filled(found, case.sources), filled(wanted, case.sources), TOLERANCE, f"steps={steps}, every={every}: gradient"
    )


@pytest.mark.parametrize(("name", "engine"), FEW_PAIRS)
def test_losses_go_back_as_far_as_by_hand(name: str, engine: str) -> None:
    nets = Nets.of(name)
    for steps, every in WINDOWS:
        agrees(Case.of(nets, 11, 2), steps, every, engine)


@pytest.mark.parametrize(("name", "engine"), FEW_PAIRS)
def test_rows_that_end_and_begin_are_cut_as_if_they_were_alone(name: str, engine: str) -> None:
    nets = Nets.of(name)
    for steps, every in ((3, 1), (5, 2)):
        agrees(Case.of(nets, 11, 3, lengths=[4, 11, 7]), steps, every, engine)
        agrees(Case.of(nets, 11, 3, lengths=[4, 11, 7], resets=somewhere(11, 3)), steps, every, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_reaches_the_parameters_as_used_at_the_last_steps(engine: str) -> None:
    """The cut sum, term by term: a linear net's parameter is another tensor at every step."""

    class Own(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=1)
            self.w = nn.Parameter(torch.tensor(0.9))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.w * h + x
            return h, h

    cell = Own().double()
    length, keep = 8, 3
    net = lp.Recurrent(cell, gradient=lp.Truncated(keep, every=1), engine=engine)
    inputs = normal(length, 1, 1)
    outputs, _ = net(inputs)
    (found,) = torch.autograd.grad(outputs.square().sum(), [cell.w])
    w, h = cell.w.detach(), [torch.zeros(1, 1).double()]
    for x in inputs:
        h.append(w * h[-1] + x)
    # d h(t) / d w = sum over i of w^(t-i) h(i-1), of which the last `keep` terms count
    terms = [sum(w ** (t - i) * h[i - 1] for i in range(max(1, t - keep + 1), t + 1)) for t in range(1, length + 1)]
    wanted = sum(2 * h[t] * term for t, term in zip(range(1, length + 1), terms, strict=True))
    close(found, torch.as_tensor(wanted).squeeze(), 1e-12)


def test_windows_side_by_side_are_one_method_however_they_are_written() -> None:
    assert lp.Truncated(3) == lp.Truncated(3, every=3)
    assert repr(lp.Truncated(3, every=3)) == "Truncated(steps=3)"
    assert repr(lp.Truncated(3, every=2, clip_state=1)) == "Truncated(steps=3, every=2, clip_state=1.0)"
    assert lp.Truncated(3, every=2).sweeps_back == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_second_derivatives_are_those_of_every_window(engine: str) -> None:
    cell = shaken(lp.RNN(3, 4))
    net = lp.Recurrent(cell, gradient=lp.Truncated(3, every=2), engine=engine)
    exact = lp.Recurrent(cell, gradient=lp.Truncated(3, every=2), engine="reference")
    second = []
    for one in (net, exact):
        x = normal(6, 2, 3, grad=True)
        outputs, _ = one(x)
        (first,) = torch.autograd.grad(outputs.square().sum(), [x], create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), [x, *cell.parameters()]))
    close(second[0], second[1])


def test_a_state_handed_in_gets_no_gradient() -> None:
    cell = shaken(lp.LSTM(3, 4))
    state = state_like(cell, 2)
    outputs, _ = lp.Recurrent(cell, gradient=lp.Truncated(4, every=1))(normal(6, 2, 3), state)
    assert torch.autograd.grad(outputs.sum(), list(state), allow_unused=True) == (None, None)


@pytest.mark.parametrize("every", [0, 2.0, "1", True])
def test_what_is_no_stretch_is_refused(every: Any) -> None:
    said(
        ArgumentError, lambda: lp.Truncated(3, every=every), "the argument 'every' is no number of steps.", repr(every)
    )


def test_a_stretch_longer_than_its_window_is_refused() -> None:
    said(
        ArgumentError,
        lambda: lp.Truncated(3, every=5),
        "every=5, steps=3",
        "every <= steps",
        "lp.Truncated(5, every=5)",
    )
