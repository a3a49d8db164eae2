"""stepwise with its steps in CUDA graphs, on a GPU: the bits of the operators launched one by one."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.engine.test_captured_steps import SWITCH, check, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CELLS = {
    "Elman": lambda: lp.Elman(3, 5, 2),
    "Jordan": lambda: lp.Jordan(3, 5, 2),
    "RNN": lambda: lp.RNN(3, 5),
    "GRU": lambda: lp.GRU(3, 5),
    "LSTM": lambda: lp.LSTM(3, 5),
    "projected": lambda: lp.LSTM(3, 5, projection=2),
    "LayerNormLSTM": lambda: lp.LayerNormLSTM(3, 5),
    "PeepholeLSTM": lambda: lp.PeepholeLSTM(3, 5),
    "LIF": lambda: lp.LIF(3, 5),
}


class Inverse(lp.Cell):
    """A matrix inverted at every step."""

    def __init__(self) -> None:
        super().__init__(h=(5, 5))
        self.W = nn.Parameter(torch.eye(5) * 3)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.linalg.inv(self.W + 0.1 * torch.tanh(h) + 0.01 * x[:, :, None])
        return h.sum((1, 2)), h


def texts(net: Any, inputs: Tensor) -> list[str]:
    """What `explain` says of the steps, forward and backward."""
    lines = net.explain(inputs.clone().requires_grad_()).splitlines()
    return [line.split("  ")[-1].strip() for line in lines if line.startswith("  steps")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CELLS)
def test_every_cell(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(CELLS[name](), engine="stepwise").to("cuda", dtype)
    inputs = torch.randn(39, 3, 3, device="cuda").to(dtype)
    for arguments in ({}, {"lengths": torch.tensor([39, 1, 14]), "resets": torch.rand(39, 3, device="cuda") < 0.3}):
        check(net, inputs, monkeypatch, **arguments)
    assert all(text.startswith("captured in CUDA graphs of 32") for text in texts(net, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [512, 513])
def test_large_cells(hidden: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(64, hidden), engine="stepwise").to("cuda", dtype)
    check(net, torch.randn(71, 20, 64, device="cuda").to(dtype), monkeypatch)


def test_an_operator_that_cannot_be_captured_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(Inverse(), engine="stepwise").cuda()
    inputs = torch.randn(20, 4, 5, device="cuda")
    check(net, inputs, monkeypatch, calls=5)
    assert all("captured in CUDA graphs" in text for text in texts(net, inputs))
    torch.randn(3, device="cuda")  # a capture that failed leaves the generator as it was
    check(lp.Recurrent(lp.GRU(3, 5), engine="stepwise").cuda(), torch.randn(9, 3, 3, device="cuda"), monkeypatch)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # gradients of four streams
def test_streams_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(16, 64), engine="stepwise").cuda()
    inputs = [torch.randn(70, 8, 16, device="cuda") for _ in range(4)]
    monkeypatch.setenv(SWITCH, "0")
    expected = [run(net, x)[0] for x in inputs]
    monkeypatch.setenv(SWITCH, "1")
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(3):
        found = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                found.append(run(net, x)[0])
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    wrong: list[str] = []

    def work(x: Tensor, y: Tensor) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
                wrong.extend("values" for _ in range(20) if not torch.equal(net(x)[0], y))
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_within_another_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(16, 32), engine="stepwise").cuda()
    inputs = torch.randn(40, 16, 16, device="cuda")
    check(net, inputs, monkeypatch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(net, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = net(inputs)[0]
        outputs.cos().sum().backward()
    captured: list[Any] = [outputs.detach(), *(parameter.grad for parameter in net.parameters())]
    del outputs  # with its graph, which belongs to the other stream
    inputs.copy_(torch.randn_like(inputs))
    graph.replay()
    torch.cuda.synchronize()
    found = [value.clone() for value in captured]
    net.zero_grad(set_to_none=True)
    outputs = net(inputs)[0]
    outputs.cos().sum().backward()
    for a, b in zip(found, [outputs, *(parameter.grad for parameter in net.parameters())], strict=True):
        assert torch.equal(a, b)


def test_the_memory_goes_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(16, 1024), engine="stepwise").cuda()
    inputs = torch.randn(40, 64, 16, device="cuda")
    check(net, inputs, monkeypatch)
    graphs = {recorder for timed in _captured(net) for recorder in timed.recorders.values()}
    assert len(graphs) == 1
    pool = graphs.pop().pool.id
    held = sum(segment["total_size"] for segment in torch.cuda.memory.memory_snapshot() if _is_of(segment, pool))
    assert held > 0
    del net
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    left = sum(segment["allocated_size"] for segment in torch.cuda.memory.memory_snapshot() if _is_of(segment, pool))
    assert left < held


def _is_of(segment: Any, pool: tuple[int, int]) -> bool:
    return tuple(segment["segment_pool_id"]) == tuple(pool)


def _captured(net: Any) -> list[Any]:
    return [
        timed.recorded
        for plan, _ in net._plan_cache.plans.values()
        for sweep in (plan.forward, plan.backward)
        for timed in sweep.program.timed
        if timed.recorded is not None
    ]
