"""lp.Truncated is the loop one writes by hand: for each window detach the state, run its steps, go backward."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.gradient.by_hand import PAIRS, TOLERANCE, Case, Nets, filled
from tests.nets.twins import ALL, ENGINES, FASTEST, close, crossed, normal, said, somewhere

LENGTHS, WINDOWS, BATCHES = (1, 3, 7, 12), (1, 3, 5, 100), (1, 3)
ENDS = {1: [1, 1, 1], 3: [3, 1, 2], 7: [4, 7, 3], 12: [12, 5, 6]}  # within windows, and at their borders


def agrees(case: Case, steps: int, engine: str) -> None:
    with said(f"windows of {steps}, inputs {list(case.inputs.shape)}"):
        found, wanted = case.by_net(lp.Truncated(steps), engine), case.by_hand(steps)
        close(filled(found, case.sources), filled(wanted, case.sources), TOLERANCE, "gradient")


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_gradients_are_those_of_windows_by_hand(name: str, engine: str) -> None:
    nets = Nets.of(name)
    for steps, length, batch in product(WINDOWS, LENGTHS, BATCHES):
        agrees(Case.of(nets, length, batch), steps, engine)


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_with_lengths_every_row_is_cut_as_if_it_were_alone(name: str, engine: str) -> None:
    """Borders that lie in the padding cut nothing: the final state's gradient comes to the row's end whole."""
    nets = Nets.of(name)
    for length, batch in product(LENGTHS, BATCHES):
        agrees(Case.of(nets, length, batch, lengths=ENDS[length][:batch]), 3, engine)


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_resets_and_lengths_go_with_windows(name: str, engine: str) -> None:
    nets = Nets.of(name)
    for length, batch in product(LENGTHS, BATCHES):
        resets = somewhere(length, batch)
        agrees(Case.of(nets, length, batch, resets=resets), 3, engine)
        agrees(Case.of(nets, length, batch, resets=resets, lengths=ENDS[length][:batch]), 3, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("forcing", ["always", "coin"])
def test_targets_get_no_gradient_from_the_window_behind_them(forcing: str, engine: str) -> None:
    nets = Nets.of("Jordan")
    for steps, length, batch in product(WINDOWS, LENGTHS, BATCHES):
        coin = {"forcing": somewhere(length, batch, chance=0.6)} if forcing == "coin" else {}
        targets = normal(length, batch, 2, seed=9, grad=True)
        agrees(Case.of(nets, length, batch, targets=targets, **coin), steps, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_arguments_go_together(engine: str) -> None:
    nets, length, batch = Nets.of("Jordan"), 12, 3
    arguments: dict[str, Any] = {
        "targets": normal(length, batch, 2, seed=9, grad=True),
        "forcing": somewhere(length, batch, chance=0.6),
        "resets": somewhere(length, batch, seed=6),
        "lengths": ENDS[length],
    }
    agrees(Case.of(nets, length, batch, handed=True, **arguments), 5, engine)


@pytest.mark.parametrize(("name", "engine"), crossed(["LSTM", "TimeDelay"], cpu=["LSTM"], stepwise=["TimeDelay"]))
def test_one_window_for_all_steps_is_the_exact_gradient(name: str, engine: str) -> None:
    case = Case.of(Nets.of(name), 7, 3)
    close(case.by_net(lp.Truncated(7), engine), case.by_net(lp.Full(), engine), TOLERANCE, "gradient")


@pytest.mark.parametrize("name", ["LSTM", "TimeDelay"])
def test_a_cut_changes_the_gradient_and_leaves_the_outputs(name: str) -> None:
    case = Case.of(Nets.of(name), 7, 3)
    exact, cut = case.by_net(lp.Full(), "stepwise")[0], case.by_net(lp.Truncated(3), "stepwise")[0]
    assert exact is not None
    assert cut is not None
    assert (exact - cut).abs().max() > 1e-3
    for engine in ALL:
        full, truncated = (case.nets[gradient, engine] for gradient in (lp.Full(), lp.Truncated(3)))
        close(truncated(case.inputs), full(case.inputs), tolerance=0)


@pytest.mark.parametrize("engine", FASTEST)
def test_batch_first_counts_steps_along_the_second_axis(engine: str) -> None:
    case = Case.of(Nets.of("LSTM"), 7, 3)
    net = lp.Recurrent(case.cell, gradient=lp.Truncated(3), engine=engine, batch_first=True)
    outputs, final = net(case.inputs.transpose(0, 1))
    found = list(torch.autograd.grad(case.loss(outputs.transpose(0, 1), final), case.sources))
    close(found, case.by_hand(3), TOLERANCE, "gradient")


class Mixed(lp.Cell):
    """Two states of different dtypes."""

    def __init__(self) -> None:
        super().__init__(h=3, d=3)
        self.W = nn.Parameter(torch.eye(3))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, d = state
        h = torch.tanh(x + h @ self.W + d.float())
        return h, (h, 0.5 * d + h.double())


@pytest.mark.parametrize("engine", ENGINES)
def test_states_of_different_dtypes_are_cut_alike(engine: str) -> None:
    cell, inputs = Mixed(), torch.randn(7, 2, 3)
    state = (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64))
    net = lp.Recurrent(cell, gradient=lp.Truncated(3), engine=engine)
    outputs, _ = net(inputs, state)
    outputs.sum().backward()
    found, cell.W.grad = cell.W.grad, None
    h, d = state
    for time, x in enumerate(inputs):
        if time % 3 == 0:
            h, d = h.detach(), d.detach()
        output, (h, d) = cell(x, (h, d))
        output.sum().backward(retain_graph=True)
    close([found], [cell.W.grad], 1e-5, "gradient")
