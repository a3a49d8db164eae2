"""Several Python threads: a trace in one neither disturbs calls in another, nor makes calls of other cells wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp

PATIENCE_SECONDS = 60


class Task(threading.Thread):
    """A function in a thread; its result or error is there when it has ended."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.function = function
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:
            self.error = error

    def ended(self) -> Any:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "it waits"
        if self.error is not None:
            raise self.error
        return self.result


def test_threads_that_call_one_net_at_once_all_get_its_outputs() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4, learned=True))
    inputs = torch.randn(5, 2, 3)
    lengths = [None, [5, 1], [4, 5], [2, 2]]
    tasks = [Task(lambda own=own: net(inputs, lengths=own)[0]) for own in lengths]
    for own, task in zip(lengths, tasks, strict=True):
        assert torch.equal(task.ended(), net(inputs, lengths=own)[0])
    assert all(isinstance(value, nn.Parameter) for value in net.parameters())


class Gate:
    """Stops a step while it is traced: `entered` when it has come there, `opened` when it may go on."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.opened.set()

    def close(self) -> None:
        self.entered.clear()
        self.opened.clear()

    def passed(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE_SECONDS)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


def gated(gate: Gate) -> lp.Cell:
    """A cell for inputs of any size, with a parameter that a trace swaps."""

    class Gated(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Parameter(torch.eye(3) / 2)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            gate.passed()
            h = torch.tanh(h @ self.W + x.sum(-1, keepdim=True))
            return h, h

    return Gated()


def trained(net: lp.Recurrent, inputs: Tensor, **options: Any) -> list[Tensor]:
    """Outputs, and the gradients of their sum."""
    outputs, _ = net(inputs, **options)
    return [outputs.detach(), *torch.autograd.grad(outputs.sum(), list(net.parameters()))]


def test_two_nets_run_cached_calls_while_a_third_is_traced(gate: Gate) -> None:
    inputs, lengths = torch.randn(5, 2, 3), torch.tensor([5, 2])
    nets = [lp.Recurrent(lp.LSTM(3, 4)), lp.Recurrent(lp.GRU(3, 4, learned=True))]

    def calls(net: lp.Recurrent) -> list[Tensor]:
        with torch.no_grad():
            outputs = [net(inputs)[0], net.step(inputs[0])[0]]
        return [*outputs, *trained(net, inputs), *trained(net, inputs, lengths=lengths)]

    expected = [calls(net) for net in nets]
    gate.close()
    tracing = Task(lambda: lp.Recurrent(gated(gate))(torch.ones(4, 2, 1)))
    assert gate.entered.wait(PATIENCE_SECONDS)
    tasks = [Task(lambda net=net: [calls(net) for _ in range(5)]) for net in nets]
    found = [task.ended() for task in tasks]
    assert tracing.is_alive()
    gate.opened.set()
    assert tracing.ended()[0].shape == (4, 2, 3)
    for rounds, wanted in zip(found, expected, strict=True):
        for once in rounds:
            assert all(torch.equal(one, other) for one, other in zip(once, wanted, strict=True))


def test_a_cached_call_waits_while_its_own_cell_is_traced(gate: Gate) -> None:
    net, inputs = lp.Recurrent(gated(gate)), torch.randn(4, 2, 1)
    expected = trained(net, inputs)
    gate.close()
    tracing = Task(lambda: net(torch.randn(4, 2, 5))[0])  # another size: traced once more
    assert gate.entered.wait(PATIENCE_SECONDS)
    calling = Task(lambda: trained(net, inputs))
    calling.join(0.3)
    assert calling.is_alive()
    gate.opened.set()
    assert tracing.ended().shape == (4, 2, 3)
    assert all(torch.equal(one, other) for one, other in zip(calling.ended(), expected, strict=True))
    assert type(net.cell.W) is nn.Parameter


def test_nets_that_share_a_module_wait_for_each_other(gate: Gate) -> None:
    shared = gated(gate)
    one, other = lp.Recurrent(shared), lp.Recurrent(lp.Stack(shared, lp.RNN(3, 4)))
    inputs = torch.randn(4, 2, 1)
    expected = trained(one, inputs)
    gate.close()
    tracing = Task(lambda: other(inputs)[0])
    assert gate.entered.wait(PATIENCE_SECONDS)
    calling = Task(lambda: trained(one, inputs))
    calling.join(0.3)
    assert calling.is_alive()
    gate.opened.set()
    assert tracing.ended().shape == (4, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(calling.ended(), expected, strict=True))


def test_a_call_of_another_batch_that_comes_in_between_changes_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may call while this one makes the zeros of its batch; here it does."""
    net, zeros = lp.Recurrent(lp.GRU(3, 4), engine="stepwise"), torch.zeros
    batches = {batch: torch.randn(2, batch, 3) for batch in (1, 2, 5)}
    with torch.no_grad():
        expected = {batch: net(inputs)[0] for batch, inputs in batches.items()}

        def interrupted(*arguments: Any, **options: Any) -> Tensor:
            monkeypatch.setattr(torch, "zeros", zeros)
            assert torch.equal(net(batches[2])[0], expected[2])
            return zeros(*arguments, **options)

        net(batches[1])
        monkeypatch.setattr(torch, "zeros", interrupted)
        assert torch.equal(net(batches[5])[0], expected[5])
        assert torch.zeros is zeros, "nothing came in between"
        for batch in (2, 5):
            assert torch.equal(net(batches[batch])[0], expected[batch])
