"""RTRL gives the gradients of Full, for every cell and call: of parameters, and of the initial state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.gradient import rtrl
from leporello.loop.cell import Cell
from leporello.loop.state import leaves_of
from leporello.nets.plain_loop import plain_loop
from tests.cells.examples import EXAMPLES
from tests.gradient.by_hand import CELLS, PAIRS
from tests.nets.twins import close, gradients, normal, shaken, somewhere, state_like, thoroughly

ENGINES = ("stepwise", *thoroughly("reference"))
QUICK = ("ElmanJordan", "LayerNormLSTM", "TimeDelay")
LENGTH, BATCH = 7, 3
NO_INITIAL = ("Perceptron", "TimeDelay", "TimeDelay of two", "TimeDelay of one")  # nothing there can be learned


def agree(cell: nn.Module, x: Any, engine: str, state: Any = None, **arguments: Any) -> None:
    """Outputs and gradients of the plain loop, the final state's among them, with the same random numbers."""
    agrees(lp.Recurrent(cell, gradient=lp.RTRL(), engine=engine), x, state, **arguments)


def agrees(net: lp.Recurrent, x: Any, state: Any = None, **arguments: Any) -> None:
    cell = net.cell
    draws = net.draw(x, state, **arguments)
    handed = [] if state is None else leaves_of(state)
    sources = [*(parameter for parameter in cell.parameters() if parameter.requires_grad), *handed]
    wanted = plain_loop(cell, checked_call(cell, x, state, **arguments), draws)
    found = net(x, state, draws=draws, **arguments)
    close(found, wanted, 1e-12, "result")
    close(gradients(found, sources), gradients(wanted, sources), 1e-10, "gradient")


def learned(name: str) -> Cell:
    """An example whose initial state is learned, where it has one."""
    cell = EXAMPLES[name]() if name in NO_INITIAL else EXAMPLES[name](learned=True)
    assert isinstance(cell, Cell)
    return shaken(cell)  # type: ignore[return-value]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [*QUICK, *thoroughly(*(name for name in EXAMPLES if name not in QUICK))])
def test_every_cell_with_lengths_and_resets_and_a_learned_initial_state(name: str, engine: str) -> None:
    agree(learned(name), normal(LENGTH, BATCH, 3), engine, lengths=[7, 2, 4], resets=somewhere(LENGTH, BATCH))


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_a_state_that_is_handed_in_gets_its_gradient(name: str, engine: str) -> None:
    cell = shaken(CELLS[name]())
    agree(cell, normal(LENGTH, BATCH, 3), engine, state_like(cell, BATCH))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("forcing", [None, 0.5])
def test_targets_that_are_fed_back(forcing: float | None, engine: str) -> None:
    cell, y = shaken(lp.Jordan(3, 5, 2)), normal(LENGTH, BATCH, 2, seed=2)
    coin = None if forcing is None else torch.rand(LENGTH, BATCH) < forcing
    agree(cell, normal(LENGTH, BATCH, 3), engine, targets=y, forcing=coin)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_length_of_one_and_a_batch_of_one(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.LSTM(3, 4, learned=True)), gradient=lp.RTRL(), engine=engine)
    for length, batch in [(1, 1), (1, 3), (5, 1)]:
        agrees(net, normal(length, batch, 3))


def test_a_sequence_longer_than_a_stretch() -> None:
    agree(shaken(lp.Elman(3, 4, 2)), 0.5 * normal(200, 2, 3), "stepwise")


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_that_need_no_gradient_get_none(engine: str) -> None:
    cell = shaken(lp.Elman(3, 4, 2))
    cell.U.requires_grad_(False)
    cell.V.requires_grad_(False)
    agree(cell, normal(LENGTH, BATCH, 3), engine)


class Counting(lp.Cell):
    """An integer state that chooses a row of a parameter; a parameter that is a number; one that nothing reads."""

    def __init__(self) -> None:
        super().__init__(h=2, n=())
        self.table, self.gain = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(()))
        self.unread = nn.Parameter(torch.zeros(2))

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Any:
        return torch.zeros(batch, 2, dtype=dtype, device=device), torch.zeros(batch, dtype=torch.int64, device=device)

    def forward(self, x: Tensor, state: Any) -> tuple[Any, Any]:
        h, n = state
        h = torch.tanh(self.gain * h + self.table[n] + x)
        return {"h": h, "n": n}, (h, (n + 1) % 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_integers_in_state_and_outputs(engine: str) -> None:
    cell, x = shaken(Counting()), normal(LENGTH, BATCH, 2)
    net = lp.Recurrent(cell, gradient=lp.RTRL(), engine=engine)
    sources = [cell.table, cell.gain, cell.unread]
    found = gradients(net(x)[0]["h"], sources)
    close(found, gradients(lp.Recurrent(cell)(x)[0]["h"], sources), 1e-10, "gradient")
    assert found[2] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_that_no_step_changes(engine: str) -> None:
    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, k = state
        h = torch.tanh(k * h + x)
        return h, (h, k)

    x, state = normal(5, 2, 3), tuple(normal(2, 3, seed=seed, grad=True) for seed in (2, 3))
    nets = [lp.Recurrent(step), lp.Recurrent(step, gradient=lp.RTRL(), engine=engine)]
    wanted, found = (gradients(net(x, state), list(state)) for net in nets)
    close(found, wanted, 1e-10, "gradient")


@pytest.mark.parametrize("engine", ENGINES)
def test_float_leaves_of_two_kinds(engine: str) -> None:
    class Two(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=2, c=2)
            self.W = nn.Parameter(0.3 * torch.eye(2))

        def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Any:
            return torch.zeros(batch, 2), torch.zeros(batch, 2, dtype=torch.float64)

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            h, c = state
            h = torch.tanh((h + c.float()) @ self.W + x)
            return h, (h, 0.5 * c + h.double())

    cell, x = Two(), torch.randn(5, 3, 2)
    wanted, found = (
        gradients(lp.Recurrent(cell, gradient=method, engine=engine)(x), [cell.W]) for method in (None, lp.RTRL())
    )
    close(found, wanted, 1e-5, "gradient")


def test_another_batch_or_length_traces_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    right = rtrl.influence
    monkeypatch.setattr(rtrl, "influence", lambda linear: made.append(linear) or right(linear))
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), gradient=lp.RTRL())
    full = lp.Recurrent(net.cell)
    for length, batch in [(5, 3), (5, 1), (2, 7), (1, 1)]:
        x = normal(length, batch, 3)
        wanted, found = (gradients(one(x), list(net.parameters())) for one in (full, net))
        close(found, wanted, 1e-10, "gradient")
    assert len(made) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_parameter_that_changes_between_calls_is_read_anew(engine: str) -> None:
    cell, x = shaken(lp.GRU(3, 4)), normal(5, 2, 3)
    net = lp.Recurrent(cell, gradient=lp.RTRL(), engine=engine)
    before = gradients(net(x), list(cell.parameters()))
    with torch.no_grad():
        cell.W.mul_(2)
    after = gradients(net(x), list(cell.parameters()))
    close(after, gradients(lp.Recurrent(cell)(x), list(cell.parameters())), 1e-10)
    assert not torch.equal(before[0], after[0])


def test_a_parameter_that_changes_before_backward_is_noticed() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), gradient=lp.RTRL())
    outputs, _ = net(torch.randn(5, 2, 3))
    with torch.no_grad():
        net.cell.W.mul_(2)
    with pytest.raises(lp.errors.GraphGone, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_the_same_call_gives_the_same_bits() -> None:
    net, x = lp.Recurrent(shaken(lp.LSTM(3, 4)), gradient=lp.RTRL()), normal(9, 3, 3)
    one, two = (gradients(net(x), list(net.parameters())) for _ in range(2))
    close(one, two, tolerance=0)
