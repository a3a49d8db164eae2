"""Whole sweeps of the engine gpu in CUDA graphs: the bits of kernels launched one by one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from benchmarks.cells import CELLS
from leporello.engine.gpu.graphs.copies import PIECES, Copies
from tests.engine.test_captured_steps import SWITCH, check, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NAMES = ("LSTM", "LayerNormLSTM", "PeepholeLSTM", "Leaky", "MultiplicativeLSTM", "ThreeProducts")


def net_of(name: str, hidden: int = 64, dtype: torch.dtype = torch.bfloat16) -> Any:
    return lp.Recurrent(CELLS[name](hidden, hidden), engine="gpu").to("cuda", dtype)


def inputs_of(length: int = 20, batch: int = 16, hidden: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(length, batch, hidden, device="cuda", dtype=dtype)


def replays(net: Any) -> list[int]:
    """How often recordings of the forward and of the backward sweep were replayed."""
    *_, (plan, _) = net._plan_cache.plans.values()
    return [sweep.recorded.replayed for sweep in (plan.forward, plan.backward)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_own_cells(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = net_of(name, dtype=dtype), inputs_of(dtype=dtype)
    lengths, resets = torch.arange(16).cuda() % 20 + 1, torch.rand(20, 16, device="cuda") < 0.1
    for arguments in ({}, {"lengths": lengths, "resets": resets}):
        check(net, inputs, monkeypatch, calls=6, **arguments)
        assert all(count > 0 for count in replays(net))


@pytest.mark.parametrize(("length", "batch"), [(1, 1), (1, 16), (3, 5), (70, 64)])
def test_odd_sizes(length: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(net_of("LSTM", 48), inputs_of(length, batch, 48), monkeypatch, calls=6)


def test_new_inputs_and_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of("LayerNormLSTM")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(8):
        check(net, inputs_of(), monkeypatch, calls=1)
        optimizer.step()
    net.load_state_dict(net_of("LayerNormLSTM").state_dict(), assign=True)  # parameters of other addresses
    check(net, inputs_of(), monkeypatch, calls=4)


def test_kept_results_and_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of("LSTM")
    inputs = [inputs_of() for _ in range(5)]
    monkeypatch.setenv(SWITCH, "0")
    expected = [[one.clone() for one in run(net, x)] for x in inputs]
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(3):
        kept = [run(net, x) for x in inputs]
        for found, wanted in zip(kept, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    for _ in range(3):
        leaves = [x.clone().requires_grad_() for x in inputs]
        called = [net(x) for x in leaves]
        for leaf, (outputs, state), wanted in zip(leaves, called, expected, strict=True):
            for _ in range(2):
                leaf.grad = None
                sum(one.cos().sum() for one in (outputs, *state)).backward(retain_graph=True)
                assert torch.equal(leaf.grad, wanted[-1])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # gradients of three streams
def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of("LSTM")
    inputs = [inputs_of() for _ in range(4)]
    monkeypatch.setenv(SWITCH, "0")
    expected = [run(net, x)[0] for x in inputs]
    monkeypatch.setenv(SWITCH, "1")
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for turn in range(6):
        found = []
        for index, x in enumerate(inputs):
            with torch.cuda.stream(streams[(index + turn) % 3]):
                found.append(run(net, x)[0])
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_within_another_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = net_of("Leaky"), inputs_of()
    check(net, inputs, monkeypatch, calls=4)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(net, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream), torch.no_grad():
        outputs = net(inputs)[0]
    inputs.copy_(torch.randn_like(inputs))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(outputs, net(inputs)[0])


def test_autocast_and_accumulated_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = net_of("LSTM", dtype=torch.float32), inputs_of(dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        check(net, inputs, monkeypatch, calls=6)
    net.zero_grad(set_to_none=True)
    totals = []
    for _ in range(6):
        net(inputs)[0].sum().backward()
        totals.append([parameter.grad.clone() for parameter in net.parameters()])
    for count, total in enumerate(totals, 1):
        assert all(torch.allclose(a, b * count, rtol=1e-4) for a, b in zip(total, totals[0], strict=True))


def test_a_network_takes_its_graphs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        net = net_of("LSTM", 256)
        for _ in range(5):
            run(net, inputs_of(64, 64, 256))

    reserved = []
    for _ in range(5):
        work()
        gc.collect()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[1] + (8 << 20)  # the first ones make what cuBLAS keeps for ever


def test_other_layers_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch allocates between the sweeps does not lie in their memory."""
    first, second = net_of("LSTM"), net_of("Leaky")
    between = nn.Linear(64, 64).to("cuda", torch.bfloat16)
    inputs = inputs_of()

    def train() -> list[torch.Tensor]:
        for module in (first, second, between):
            module.zero_grad(set_to_none=True)
        outputs = second(torch.relu(between(first(inputs)[0])))[0]
        outputs.square().sum().backward()
        return [outputs.detach(), *(p.grad for m in (first, second, between) for p in m.parameters())]

    monkeypatch.setenv(SWITCH, "0")
    expected = [one.clone() for one in train()]
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(6):
        assert all(torch.equal(a, b) for a, b in zip(train(), expected, strict=True))


def test_graphs_of_several_networks_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All forward sweeps run before the first backward sweep, whatever was captured before what."""
    nets = [net_of(name) for name in NAMES]
    inputs = inputs_of()

    def train() -> list[torch.Tensor]:
        for net in nets:
            net.zero_grad(set_to_none=True)
        outputs = [net(inputs)[0] for net in nets]
        for one in outputs:
            one.square().sum().backward()
        return [*(one.detach() for one in outputs), *(p.grad for net in nets for p in net.parameters())]

    monkeypatch.setenv(SWITCH, "0")
    expected = [one.clone() for one in train()]
    monkeypatch.setenv(SWITCH, "1")
    for net in reversed(nets):
        for _ in range(3):
            run(net, inputs)
    for _ in range(6):
        assert all(torch.equal(a, b) for a, b in zip(train(), expected, strict=True))
    assert all(count > 0 for net in nets for count in replays(net))


@pytest.mark.parametrize("count", [1, 3, PIECES, 2 * PIECES + 1])
def test_copies(count: int) -> None:
    copies = Copies(torch.device("cuda", torch.cuda.current_device()))
    sizes = [(index * 7919) % 100_003 + 1 for index in range(count)]
    sources = [torch.randint(0, 255, (size + 16,), dtype=torch.uint8, device="cuda") for size in sizes]
    memory = [torch.zeros_like(source) for source in sources]
    offsets: Callable[[int], int] = lambda index: (index * 5) % 16  # noqa: E731
    copies(
        [one.data_ptr() + offsets(index) for index, one in enumerate(memory)],
        [one.data_ptr() + offsets(index // 2) for index, one in enumerate(sources)],
        sizes,
    )
    for index, (to, source, size) in enumerate(zip(memory, sources, sizes, strict=True)):
        at, begin = offsets(index), offsets(index // 2)
        assert torch.equal(to[at : at + size], source[begin : begin + size])
        assert not to[:at].any()
        assert not to[at + size :].any()
