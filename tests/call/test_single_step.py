"""One step at a time without gradients: by one function where a kernel is all of it, and what the plain loop gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.call.cached_call import CachedCall
from leporello.loop.state import leaves_of
from leporello.nets.recurrent import Recurrent

pytestmark = pytest.mark.kernels
CELLS = {"RNN": lp.RNN, "GRU": lp.GRU, "LSTM": lp.LSTM}


def stepped(net: Recurrent, x: Tensor, state: object = None) -> list[Tensor]:
    with torch.no_grad():
        output, following = net.step(x, state)
    return [output, *leaves_of(following)]


def same(net: Recurrent, x: Tensor, state: object = None) -> None:
    twin = lp.Recurrent(net.cell, engine="reference")
    for found, wanted in zip(stepped(net, x, state), stepped(twin, x, state), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.fixture
def checks_closed(monkeypatch: pytest.MonkeyPatch):
    """A call that is not run by its cached single step fails."""

    def close() -> None:
        monkeypatch.setattr(CachedCall, "run", None)
        monkeypatch.setattr(Recurrent, "_run", None)

    return close


@pytest.mark.parametrize("name", CELLS)
def test_the_third_step_of_a_signature_is_run_by_one_function(name: str, checks_closed) -> None:
    net, state = lp.Recurrent(CELLS[name](3, 5).double(), engine="cpu"), None
    for batch in (1, 4):
        x = torch.randn(batch, 3, dtype=torch.float64)
        state = net.step(x)[1]
        same(net, x, state)
        same(net, x, state)
    twin = lp.Recurrent(net.cell, engine="reference")
    wanted = stepped(twin, x, state)
    checks_closed()
    with torch.no_grad():
        output, following = net.step(x, state)
    for found, other in zip([output, *leaves_of(following)], wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-12)


def test_a_change_is_seen() -> None:
    net, x = lp.Recurrent(lp.LSTM(3, 5).double(), engine="cpu"), torch.randn(2, 3, dtype=torch.float64)
    state = tuple(torch.randn(2, 5, dtype=torch.float64) for _ in range(2))
    for _ in range(3):
        same(net, x, state)
    with torch.no_grad():
        net.cell.W.mul_(2)
    same(net, x, state)
    net.cell.W = torch.nn.Parameter(torch.randn_like(net.cell.W))
    same(net, x, state)
    same(net, x)
    same(net, torch.randn(7, 3, dtype=torch.float64))
    net.engine = "stepwise"
    same(net, x, state)
    net.engine = "cpu"
    net.cell.float()
    found = stepped(net, x.float(), tuple(leaf.float() for leaf in state))
    assert {leaf.dtype for leaf in found} == {torch.float32}


def test_a_state_of_another_batch_is_refused_as_ever() -> None:
    net, x = lp.Recurrent(lp.RNN(3, 5), engine="cpu"), torch.randn(2, 3)
    for _ in range(3):
        stepped(net, x, torch.zeros(2, 5))
    with pytest.raises(lp.errors.LeporelloError), torch.no_grad():
        net.step(x, torch.zeros(3, 5))


def test_results_lie_in_memory_of_their_own() -> None:
    net, x = lp.Recurrent(lp.RNN(3, 5), engine="cpu"), torch.randn(2, 3)
    for _ in range(3):
        output, state = stepped(net, x, torch.zeros(2, 5))
    output.zero_()
    assert state.any()


def test_with_gradients_a_step_is_trained() -> None:
    net, x = lp.Recurrent(lp.GRU(3, 5), engine="cpu"), torch.randn(2, 3)
    for _ in range(3):
        stepped(net, x, torch.zeros(2, 5))
    net.step(x, torch.zeros(2, 5))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
