"""Kernels for each level on a GPU: all cells, sizes, number types; recorded, on streams, in other captures."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from tests.cells.examples import EXAMPLES, shaken
from tests.engine.gpu.heads import HeadsLSTM
from tests.gpu.levels_on_gpu import ENGINE
from tests.gpu.test_kernels import BATCHES, TOLERANCES, difference, gradients_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SWITCH = "LEPORELLO_CUDA_GRAPHS"


def check(
    cell: lp.Cell, inputs: int, batch: int, dtype: torch.dtype, length: int = 39, engine: str = ENGINE, **arguments: Any
) -> lp.Recurrent:
    """Calls that launch, record and replay are about the plain loop in float64, and of the same bits."""
    torch.manual_seed(0)
    cell = cell.cuda().to(dtype)
    exact = lp.Recurrent(copy.deepcopy(cell).double(), engine="reference")
    net = lp.Recurrent(cell, engine=engine)
    x = torch.randn(length, batch, inputs, device="cuda").to(dtype)
    weights = torch.randn(exact(x.double())[0].shape, device="cuda", dtype=torch.float64)
    expected = gradients_of(exact, x.double(), weights, **arguments)
    by_torch = gradients_of(lp.Recurrent(cell, engine="stepwise"), x, weights, **arguments)
    calls = [[value.clone() for value in gradients_of(net, x, weights, **arguments)] for _ in range(3)]
    for a, b, other in zip(calls[0], expected, by_torch, strict=True):
        assert difference(a, b) < max(TOLERANCES[dtype], difference(other, b)), (difference(a, b), a.shape)
    for call in calls[1:]:
        assert torch.equal(call[0], calls[0][0])
        assert all(difference(a, b) < 1e-6 for a, b in zip(call, calls[0], strict=True))
    said = net.explain(x, **arguments)
    assert "each level is a kernel" in said
    assert "not captured in CUDA graphs" not in said
    assert length < 4 or "captured in CUDA graphs of" in said
    return net


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cell(name: str) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()).float(), engine=ENGINE).cuda()
    inputs = torch.randn(6, 19, 3, device="cuda")
    resets = torch.rand(6, 19, device="cuda") < 0.3
    for arguments in ({}, {"lengths": torch.arange(19) % 6 + 1, "resets": resets}):
        report = lp.check_gradients(net, inputs, **arguments)
        assert report.ok, report


@pytest.mark.parametrize("hidden", [1, 3, 17, 64, 65, 1024])
def test_every_size(hidden: int) -> None:
    check(lp.LSTM(hidden, hidden), hidden, 5, torch.bfloat16 if hidden > 16 else torch.float32)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_batch(batch: int) -> None:
    check(lp.LSTM(64, 256), 64, batch, torch.bfloat16)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LayerNormLSTM", "PeepholeLSTM"])
def test_every_dtype(kind: str, dtype: torch.dtype) -> None:
    lengths = torch.arange(16) % 39 + 1
    check(getattr(lp, kind)(48, 96), 48, 16, dtype, lengths=lengths)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_heads(dtype: torch.dtype) -> None:
    check(HeadsLSTM(48, 12, 64), 48, 16, dtype)
    check(HeadsLSTM(48, 3, 17), 48, 5, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_does_not_fit_on_the_chip(dtype: torch.dtype) -> None:
    hidden = 2048 if dtype == torch.float32 else 4096
    check(lp.LSTM(32, hidden), 32, 16, dtype, length=5, engine="gpu")


def test_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(16, 33), engine=ENGINE).cuda()
    inputs = torch.randn(71, 9, 16, device="cuda")
    weights = torch.randn(71, 9, 33, device="cuda")
    recorded = [gradients_of(net, inputs, weights) for _ in range(3)][-1]
    recorded = [value.clone() for value in recorded]
    monkeypatch.setenv(SWITCH, "0")
    assert torch.equal(gradients_of(net, inputs, weights)[0], recorded[0])


def test_autocast_moves_the_matrices() -> None:
    torch.manual_seed(0)
    net, inputs = lp.Recurrent(lp.LSTM(16, 48), engine=ENGINE).cuda(), torch.randn(40, 5, 16, device="cuda")
    exact = lp.Recurrent(copy.deepcopy(net.cell).double(), engine="reference")(inputs.double())[0]
    held = []
    for _ in range(6):
        with torch.autocast("cuda", torch.bfloat16):
            outputs, _ = net(inputs)
        outputs.float().square().sum().backward()
        assert difference(outputs, exact) < TOLERANCES[torch.bfloat16]
        held.append(torch.empty(int(torch.randint(1, 1 << 16, ())), device="cuda"))  # other addresses next time


def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(16, 256), engine=ENGINE).cuda().bfloat16()
    inputs = [torch.randn(70, 8, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    with torch.no_grad():
        monkeypatch.setenv(SWITCH, "0")
        expected = [net(x)[0] for x in inputs]
        monkeypatch.setenv(SWITCH, "1")
        torch.cuda.synchronize()
        for _ in range(3):
            found = []
            for x in inputs:
                with torch.cuda.stream(torch.cuda.Stream()):
                    found.append(net(x)[0])
            torch.cuda.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_training_step_in_a_cuda_graph() -> None:
    net = lp.Recurrent(lp.LSTM(16, 32), engine=ENGINE).cuda().bfloat16()
    inputs = torch.randn(40, 16, 16, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(40, 16, 32, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients_of(net, inputs, weights)
    torch.cuda.current_stream().wait_stream(stream)
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = net(inputs)[0]
        (outputs * weights).sum().backward()
    captured: list[Tensor] = [outputs.detach(), *(parameter.grad for parameter in net.parameters())]
    del outputs  # with its graph, which belongs to the other stream
    inputs.copy_(torch.randn_like(inputs))
    graph.replay()
    torch.cuda.synchronize()
    found = [value.clone() for value in captured]
    for a, b in zip(found, gradients_of(net, inputs, weights), strict=True):
        assert torch.equal(a, b)
