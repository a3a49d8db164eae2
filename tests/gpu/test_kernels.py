"""The engine gpu on a GPU: all cells, sizes, number types; graphs, streams, gradients of gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from tests.cells.examples import EXAMPLES, shaken
from tests.engine.gpu.heads import HeadsLSTM

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Of outputs and gradients, relative to the norm: some roundings of a number with 8, 11 and 24 bits. A wrong element in
# a hundred would be 0.1. Where torch's own operators are off by more, as through a layer norm, so may the kernel be.
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
HIDDEN = (1, 3, 17, 64, 100, 256, 768, 1024)
BATCHES = (1, 5, 16, 64, 130)


def difference(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)).item()


def gradients_of(net: lp.Recurrent, inputs: Tensor, weights: Tensor, **arguments: Any) -> list[Tensor]:
    """Outputs and the gradients of all parameters, of a weighted sum of the outputs."""
    net.zero_grad(set_to_none=True)
    outputs = net(inputs, **arguments)[0]
    (outputs.to(weights.dtype) * weights).sum().backward()
    return [outputs.detach(), *(parameter.grad for parameter in net.parameters())]


def check(cell: lp.Cell, inputs: int, batch: int, dtype: torch.dtype, length: int = 9, **arguments: Any) -> None:
    torch.manual_seed(0)
    cell = cell.cuda().to(dtype)
    exact = lp.Recurrent(copy.deepcopy(cell).double(), engine="reference")
    net = lp.Recurrent(cell, engine="gpu")
    x = torch.randn(length, batch, inputs, device="cuda").to(dtype)
    weights = torch.randn_like(net(x)[0], dtype=torch.float64)
    expected = gradients_of(exact, x.double(), weights, **arguments)
    found = gradients_of(net, x, weights, **arguments)
    by_torch = gradients_of(lp.Recurrent(cell, engine="stepwise"), x, weights, **arguments)
    for a, b, other in zip(found, expected, by_torch, strict=True):
        assert difference(a, b) < max(TOLERANCES[dtype], difference(other, b)), (difference(a, b), a.shape)
    again = gradients_of(net, x, weights, **arguments)
    assert torch.equal(found[0], again[0])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cell(name: str) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()).float(), engine="gpu").cuda()
    inputs = torch.randn(6, 19, 3, device="cuda")
    resets = torch.rand(6, 19, device="cuda") < 0.3
    for arguments in ({}, {"lengths": torch.arange(19) % 6 + 1, "resets": resets}):
        report = lp.check_gradients(net, inputs, **arguments)
        assert report.ok, report


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_every_size(kind: str, hidden: int) -> None:
    batch = BATCHES[HIDDEN.index(hidden) % len(BATCHES)]
    dtype = torch.bfloat16 if hidden > 16 else torch.float32  # of a single number of 8 bits the rounding is not small
    check(getattr(lp, kind)(hidden, hidden), hidden, batch, dtype)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_batch(batch: int) -> None:
    check(lp.LSTM(64, 256), 64, batch, torch.bfloat16)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "LayerNormLSTM", "PeepholeLSTM"])
def test_every_dtype(kind: str, dtype: torch.dtype) -> None:
    lengths = torch.arange(16) % 9 + 1
    check(getattr(lp, kind)(48, 96), 48, 16, dtype, lengths=lengths)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_heads_with_groups_of_their_own(dtype: torch.dtype) -> None:
    check(HeadsLSTM(48, 12, 64), 48, 16, dtype)
    check(HeadsLSTM(48, 3, 17), 48, 5, dtype)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_under_autocast_with_a_gradient_scaler(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.LSTM(16, 48)).cuda()
    exact = lp.Recurrent(copy.deepcopy(net.cell).double(), engine="reference")
    inputs = torch.randn(9, 19, 16, device="cuda")
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.autocast("cuda", dtype):
        assert "gpu" in net.explain(inputs)
        outputs, _ = net(inputs)
        loss = outputs.float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    exact(inputs.double())[0].square().mean().backward()
    for one, other in zip(net.parameters(), exact.parameters(), strict=True):
        assert one.grad.dtype == torch.float32
        assert difference(one.grad, other.grad) < 2 * TOLERANCES[dtype]
    before = [parameter.detach().clone() for parameter in net.parameters()]
    scaler.step(optimizer)
    scaler.update()
    assert all(not torch.equal(one, other) for one, other in zip(net.parameters(), before, strict=True))


def test_float32_may_use_tf32_where_torch_does() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    net = lp.Recurrent(lp.LSTM(64, 64), engine="gpu").cuda()
    exact = lp.Recurrent(copy.deepcopy(net.cell).double(), engine="reference")
    inputs = torch.randn(9, 16, 64, device="cuda")
    errors = []
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            errors.append(difference(net(inputs)[0], exact(inputs.double())[0]))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert errors[0] < 2e-6 < errors[1] < 2e-3, errors


def test_float64_goes_to_stepwise_by_name() -> None:
    net = lp.Recurrent(lp.GRU(3, 5)).cuda().double()
    text = net.explain(torch.zeros(4, 2, 3, device="cuda", dtype=torch.float64))
    assert "stepwise" in text
    assert "float64" in text
    with pytest.raises(lp.errors.EngineRefusal):
        lp.Recurrent(lp.GRU(3, 5), engine="gpu").cuda().double()(torch.zeros(4, 2, 3, device="cuda").double())


def test_a_training_step_in_a_cuda_graph() -> None:
    net = lp.Recurrent(lp.LSTM(16, 32), engine="gpu").cuda().bfloat16()
    inputs = torch.randn(7, 16, 16, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(7, 16, 32, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients_of(net, inputs, weights)
    torch.cuda.current_stream().wait_stream(stream)
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):  # that of the warm-up: gradients are added up on one stream
        outputs = net(inputs)[0]
        (outputs * weights).sum().backward()
    captured = [outputs.detach(), *(parameter.grad for parameter in net.parameters())]
    del outputs  # with its graph, which belongs to the other stream
    inputs.copy_(torch.randn_like(inputs))
    graph.replay()
    torch.cuda.synchronize()
    found = [value.clone() for value in captured]
    for a, b in zip(found, gradients_of(net, inputs, weights), strict=True):
        assert torch.equal(a, b)


def test_a_busy_second_stream() -> None:
    net = lp.Recurrent(lp.LSTM(64, 1024), engine="gpu").cuda().bfloat16()
    inputs = torch.randn(64, 16, 64, device="cuda", dtype=torch.bfloat16)
    quiet = net(inputs)[0]
    large = torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            large = large @ large * 1e-3
    assert torch.equal(net(inputs)[0], quiet)
    torch.cuda.synchronize()


def test_gradients_of_gradients() -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="gpu").cuda()
    exact = lp.Recurrent(copy.deepcopy(net.cell).double(), engine="reference")
    inputs = torch.randn(5, 4, 3, device="cuda")

    def second(net: lp.Recurrent, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(net(x)[0].square().sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), x)
        return found

    assert difference(second(net, inputs), second(exact, inputs.double())) < 1e-4


def test_one_step_at_a_time_is_the_whole() -> None:
    net = lp.Recurrent(lp.LSTM(16, 64), engine="gpu").cuda()
    inputs, state = torch.randn(5, 4, 16, device="cuda"), None
    with torch.no_grad():
        whole, _ = net(inputs)
        for time, x in enumerate(inputs):
            output, state = net.step(x, state)
            assert difference(output, whole[time]) < 1e-5


class Writer(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=24)
        self.table = torch.nn.Embedding(11, 24)
        self.W, self.V = torch.nn.Linear(24, 24), torch.nn.Linear(24, 11)

    def forward(self, token: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.table(token) + self.W(h))
        return self.V(h), h


def test_generation() -> None:
    cell = Writer().cuda()
    token = torch.zeros(3, dtype=torch.long, device="cuda")
    texts = [
        lp.generate(lp.Recurrent(cell, engine=engine), token, steps=12, temperature=0)[0]
        for engine in ("auto", "stepwise")
    ]
    assert torch.equal(*texts)
