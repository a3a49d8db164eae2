"""Kernels of the engine gpu, built for the host: every cell, on every exchange, gives what the plain loop gives."""

from __future__ import annotations

import copy

import pytest
import torch

import leporello as lp
from tests.cells.examples import EXAMPLES, shaken
from tests.engine.gpu.heads import HeadsLSTM
from tests.gpu_on_host import SHAPES
from tests.nets.twins import thoroughly

QUICK = {  # one cell for each thing that a kernel does: sums, ring, levels and totals, several spaces, no exchange
    ("gpu-host-block", "GRU"),
    ("gpu-host-cluster", "LSTM"),
    ("gpu-host-cluster", "LayerNormLSTM"),
    ("gpu-host-grid", "ElmanJordan"),
    ("gpu-host-grid", "IndRNN"),
}
CASES = [
    pytest.param(engine, name, marks=[] if (engine, name) in QUICK else pytest.mark.slow)
    for engine in SHAPES
    for name in EXAMPLES
]
X = torch.randn(6, 19, 3, generator=torch.Generator().manual_seed(2))
LENGTHS = torch.arange(19) % 6 + 1
RESETS = torch.rand(6, 19, generator=torch.Generator().manual_seed(3)) < 0.3


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_a_cell_gives_what_the_plain_loop_gives(engine: str, name: str) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()).float(), engine=engine)
    report = lp.check_gradients(net, X, lengths=LENGTHS, resets=RESETS)
    assert report.ok, report


@pytest.mark.parametrize(("engine", "name"), CASES)
@pytest.mark.slow
def test_without_lengths_and_resets_too(engine: str, name: str) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()).float(), engine=engine)
    assert lp.check_gradients(net, X).ok


# Relative to the norm: 8 and 11 bits of a number, a few roundings deep. Where torch's own operators are off by more, as
# they are through a layer norm, so may the kernel be.
TOLERANCES = {torch.bfloat16: 8e-3, torch.float16: 1e-3}


def results(net: lp.Recurrent, inputs: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, and the gradients of all parameters."""
    net.zero_grad(set_to_none=True)
    outputs = net(inputs)[0]
    (outputs.double() * weights).sum().backward()
    return [outputs.detach().double(), *(parameter.grad.double() for parameter in net.parameters())]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", ["LSTM", *thoroughly("RNN", "GRU", "LayerNormLSTM")])
@pytest.mark.parametrize("engine", ["gpu-host-cluster", *thoroughly("gpu-host-block", "gpu-host-grid")])
def test_sixteen_bits_are_computed_in_float32(engine: str, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cell = getattr(lp, kind)(16, 48).to(dtype)  # whole pieces of 16 bytes: inputs go through the ring
    inputs, weights = torch.randn(9, 19, 16).to(dtype), torch.randn(9, 19, 48)
    exact = results(lp.Recurrent(copy.deepcopy(cell).double(), engine="reference"), inputs.double(), weights)
    by_torch = results(lp.Recurrent(cell, engine="stepwise"), inputs, weights)
    by_kernel = results(lp.Recurrent(cell, engine=engine), inputs, weights)
    for number, (found, other, wanted) in enumerate(zip(by_kernel, by_torch, exact, strict=True)):
        error, torchs = ((value - wanted).norm() / wanted.norm() for value in (found, other))
        assert error < max(TOLERANCES[dtype], torchs), (number, error, torchs)


@pytest.mark.parametrize("kind", ["LSTM", *thoroughly("RNN", "GRU", "PeepholeLSTM")])
def test_float32_parameters_under_autocast(kind: str) -> None:
    torch.manual_seed(0)
    cell, inputs = getattr(lp, kind)(16, 48), torch.randn(9, 19, 16)
    found = []
    for net in (lp.Recurrent(copy.deepcopy(cell), engine="gpu-host-cluster"), lp.Recurrent(copy.deepcopy(cell))):
        with torch.autocast("cpu", torch.bfloat16, enabled=net.engine != "auto"):
            outputs, _ = net(inputs)
            loss = outputs.float().square().sum()
        loss.backward()
        found.append([outputs.detach(), *(parameter.grad for parameter in net.parameters())])
        assert all(value.dtype == torch.float32 for value in found[-1][1:])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() / other.norm() < 2 * TOLERANCES[torch.bfloat16]
    assert not torch.equal(found[0][0], found[1][0])  # its products are rounded


def test_the_same_bits_from_run_to_run() -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine="gpu-host-grid")
    first, second = net(X)[0], net(X)[0]
    assert torch.equal(first, second)


def test_explain_says_how_a_kernel_is_divided() -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine="gpu-host-cluster")
    assert "chosen by the first call" in net.explain(X)
    net(X)
    assert "a cluster of 4 blocks of 64 threads take 16 rows of the batch" in net.explain(X)


class TwoProducts(lp.Cell):
    """A product of what the step itself has computed: a level more."""

    def __init__(self) -> None:
        super().__init__(h=7)
        self.U, self.W, self.V = torch.nn.Linear(3, 7), torch.nn.Linear(7, 7), torch.nn.Linear(7, 7)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        reset = torch.sigmoid(self.W(h))
        h = torch.tanh(self.U(x) + self.V(reset * h))
        return h, h


@pytest.mark.parametrize("engine", ["gpu-host-cluster", *thoroughly("gpu-host-block", "gpu-host-grid")])
def test_a_product_of_a_fresh_value(engine: str) -> None:
    assert lp.check_gradients(lp.Recurrent(TwoProducts(), engine=engine), X, lengths=LENGTHS).ok


@pytest.mark.parametrize("heads", [2, *thoroughly(3)])
@pytest.mark.parametrize("engine", ["gpu-host-cluster", *thoroughly("gpu-host-block", "gpu-host-grid")])
def test_heads_with_groups_of_their_own(engine: str, heads: int) -> None:
    for size in (5, 8):  # with and without whole pieces of 16 bytes
        net = lp.Recurrent(HeadsLSTM(3, heads, size), engine=engine)
        assert lp.check_gradients(net, X, lengths=LENGTHS, resets=RESETS).ok


class MixedNorm(lp.Cell):
    """A layer norm whose gain is float32: mean and rate are float32 then, as they are on a GPU for every gain."""

    def __init__(self) -> None:
        super().__init__(h=16)
        self.U, self.W = torch.nn.Linear(16, 16).bfloat16(), torch.nn.Linear(16, 16).bfloat16()
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.U(x) + self.norm(self.W(h)))
        return h, h


def test_a_layer_norm_with_float32_inside() -> None:
    cell = MixedNorm()
    inputs = torch.randn(5, 9, 16).bfloat16()
    exact = lp.Recurrent(copy.deepcopy(cell).double(), engine="reference")
    found, wanted = lp.Recurrent(cell, engine="gpu-host-cluster")(inputs)[0], exact(inputs.double())[0]
    assert (found - wanted).norm() / wanted.norm() < TOLERANCES[torch.bfloat16]
    found.double().sum().backward()
    wanted.sum().backward()
    gradients = cell.W.weight.grad, exact.cell.W.weight.grad
    assert (gradients[0] - gradients[1]).norm() / gradients[1].norm() < 2 * TOLERANCES[torch.bfloat16]
