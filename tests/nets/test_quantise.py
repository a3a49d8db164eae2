"""Networks with matrices in int8 and bfloat16: near the network they are made of, on every engine the same, fast."""

from __future__ import annotations

import copy
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.nets.export.c_export import CReport
from leporello.nets.quantise import Quantised
from leporello.rewrite.pipeline import Context, Pipeline
from tests.cells.examples import EXAMPLES
from tests.interpreted import INTERPRETED

NEAR = {"int8": 0.05, "bfloat16": 0.03}  # of the largest output: rounding of the matrices, through eleven steps
SAME = 2e-5  # float32: the order of summation alone differs
ROUNDED = 2e-4  # rows of 64 numbers or more are rounded to 16 bits, on the engine cpu with int8
CELLS = ("Elman", "LSTM", "GRU", "MinGRU", "Leaky current", "TimeDelay", "Perceptron")


class Parts(lp.Cell):
    """Matrices that are used in parts, transposed, for several heads, and twice."""

    def __init__(self) -> None:
        super().__init__(h=6)
        self.gates = nn.Parameter(torch.randn(12, 6) / 3)
        self.into = nn.Parameter(torch.randn(3, 6) / 3)  # inputs first
        self.heads = nn.Parameter(torch.randn(2, 3, 3) / 3)
        self.tied = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        update, reset = self.gates[:6], self.gates[6:]
        mixed = torch.einsum("bhk,hkn->bhn", h.view(-1, 2, 3), self.heads).flatten(1)
        z = torch.sigmoid(h @ update.T + x @ self.into)
        h = torch.tanh(torch.cat([x, h], 1) @ torch.cat([self.into, self.tied]) + h @ reset.T * z + mixed)
        return h @ self.tied.T, h


def inputs_of(length: int = 11, batch: int = 3) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(length, batch, 3)


def reference_of(small: Quantised) -> Quantised:
    """The same network on the engine that runs the step as it is written."""
    return Quantised(small.cell, engine="reference", batch_first=small.batch_first)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", CELLS)
def test_quantised_cells_are_near_and_the_same_on_every_engine(name: str, weights: Any) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(EXAMPLES[name]().eval(), engine="cpu")
    small = lp.quantise(net, inputs_of(), weights=weights)
    assert small.report.largest_error <= NEAR[weights] * max(1, small.report.largest_output)
    assert small.report.mean_error > 0
    for batch in (1, 2, 9):
        inputs = inputs_of(7, batch)
        given, wanted = small(inputs), reference_of(small)(inputs)
        torch.testing.assert_close(given, wanted, atol=SAME, rtol=SAME)
        x, state = inputs[0], small.initial_state(batch)
        torch.testing.assert_close(small.step(x, state), reference_of(small).step(x, state), atol=SAME, rtol=SAME)


@pytest.mark.parametrize("engine", ["cpu", "stepwise", "interpreted"])
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_parts_heads_and_tied_matrices(engine: str, weights: Any) -> None:
    assert INTERPRETED.stored
    torch.manual_seed(0)
    small = lp.quantise(lp.Recurrent(Parts(), engine=engine), inputs_of(), weights=weights)
    assert set(small.report.matrices) >= {"gates", "into", "tied"}
    inputs = inputs_of(7, 5)
    torch.testing.assert_close(small(inputs), reference_of(small)(inputs), atol=SAME, rtol=SAME)
    assert small.report.largest_error < NEAR[weights]


@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (3, 63), (17, 65), (33, 130)])
def test_products_of_odd_sizes(inputs: int, hidden: int) -> None:
    torch.manual_seed(0)
    data = torch.randn(6, 5, inputs)
    for weights, off in (("int8", ROUNDED), ("bfloat16", SAME)):
        small = lp.quantise(lp.Recurrent(lp.GRU(inputs, hidden), engine="cpu"), data, weights=weights)  # type: ignore[arg-type]
        for batch in (1, 3, 5):
            given, wanted = small(data[:, :batch]), reference_of(small)(data[:, :batch])
            torch.testing.assert_close(given, wanted, atol=off, rtol=off)


class InputsFirst(lp.Cell):
    """x U + h W: matrices whose inner axis is the first."""

    def __init__(self, size: int) -> None:
        super().__init__(h=size)
        self.U = nn.Parameter(torch.randn(size, size) / size**0.5)
        self.W = nn.Parameter(torch.randn(size, size) / size**0.5)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ self.U + h @ self.W)
        return h, h


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_matrices_are_stored_with_their_inner_axis_last(weights: Any) -> None:
    torch.manual_seed(0)
    net, data = lp.Recurrent(InputsFirst(66), engine="cpu"), torch.randn(7, 3, 66)
    small = lp.quantise(net, data, weights=weights)
    wide = small.cell.U_stored.t() * (small.cell.U_scale if weights == "int8" else 1)
    torch.testing.assert_close(wide, net.cell.U.data, atol=0.01, rtol=0.01, check_dtype=False)
    torch.testing.assert_close(small(data), reference_of(small)(data), atol=ROUNDED, rtol=ROUNDED)
    torch.testing.assert_close(small(data)[0], net(data)[0], atol=NEAR[weights], rtol=NEAR[weights])
    torch.testing.assert_close(small.step(data[0]), reference_of(small).step(data[0]), atol=ROUNDED, rtol=ROUNDED)


def test_steps_and_sequences_have_the_same_bits() -> None:
    torch.manual_seed(0)
    data = torch.randn(7, 2, 70)
    small = lp.quantise(lp.Recurrent(lp.LSTM(70, 130), engine="cpu"), data)
    outputs, final = small(data)
    state = small.initial_state(2)
    for x, wanted in zip(data, outputs, strict=True):
        output, state = small.step(x, state)
        assert torch.equal(output, wanted)
    assert torch.equal(state.c, final.c)
    assert torch.equal(small(data[:, :1])[0], outputs[:, :1])


def test_kernels_read_the_stored_numbers() -> None:
    small = lp.quantise(lp.Recurrent(lp.LSTM(3, 16), engine="cpu"), inputs_of())
    call = small._checked(inputs_of(), None)
    plan, _ = small._plan_cache.plan(small.cell, call, small.gradient, "cpu")
    kernels = [stage.kernel.kernel for stage in plan.plain.program.timed if stage.kernel is not None]
    stored = [kernel.buffers["fixed"][matrix.fixed].dtype for kernel in kernels for matrix in kernel.matrices]
    assert stored == [torch.int8, torch.int8]
    assert plan.plain.program.only_kernels


def test_the_rewrite_takes_the_scale_out_of_the_product() -> None:
    small = lp.quantise(lp.Recurrent(lp.LSTM(3, 16)), inputs_of())
    loop = small.fold(inputs_of())
    pipeline = Pipeline(Context())
    rewritten = pipeline.forward(loop)
    assert [record.name for record in pipeline.records] == ["part", "scale_products"]
    products = [node for node in rewritten.nodes if "mm" in str(node.target)]
    assert all(node.args[-1].args[0].meta["val"].dtype == torch.int8 for node in products)  # type: ignore[union-attr]
    values = [
        small._plan_cache.loop(small.cell, small._checked(inputs_of(), None)).invariant(p.name) for p in loop.inputs
    ]
    assert sum(value is not None and value.dtype == torch.int8 for value in values) == 2
    net = lp.Recurrent(lp.LSTM(3, 16))
    other = Pipeline(Context())
    other.forward(net.fold(inputs_of()))
    assert [record.name for record in other.records] == ["part"]


def test_a_network_keeps_its_weights_and_the_copy_has_none_of_them(tmp_path: Path) -> None:
    net = lp.Recurrent(lp.GRU(3, 32))
    before = copy.deepcopy(net.state_dict())
    small = lp.quantise(net, inputs_of())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    floats = [value for value in small.state_dict().values() if value.is_floating_point()]
    assert sum(value.numel() for value in floats) < 5 * 96  # biases and scales
    assert small.report.bytes_before == 4 * (96 * 3 + 96 * 32)
    assert small.report.bytes_after == 96 * 3 + 96 * 32 + 2 * 4 * 96
    other = lp.quantise(lp.Recurrent(lp.GRU(3, 32)), inputs_of())
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(inputs_of())[0], small(inputs_of())[0])
    lp.save(small, tmp_path / "small.safetensors")
    read = lp.load(tmp_path / "small.safetensors", into=lp.quantise(lp.Recurrent(lp.GRU(3, 32)), inputs_of()))
    assert torch.equal(read(inputs_of())[0], small(inputs_of())[0])
    again = copy.deepcopy(small)
    assert torch.equal(again(inputs_of())[0], small(inputs_of())[0])


def test_scales_fit_the_data() -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.Elman(3, 24, 2))
    with torch.no_grad():
        net.cell.U[:, 0] *= 50  # the first input is always zero: its large weights are of no use
    data = torch.randn(40, 4, 3)
    data[:, :, 0] = 0
    fitted = lp.quantise(net, data).report.mean_error
    unfitted = lp.quantise(net, torch.randn(40, 4, 3))
    off = (unfitted(data)[0] - net(data)[0]).abs().mean().item()
    assert fitted < 0.8 * off


def test_layers_and_cells_and_batch_first() -> None:
    torch.manual_seed(0)
    layers = lp.Layers(lp.Recurrent(lp.GRU(3, 8), batch_first=True), lp.Recurrent(lp.LSTM(8, 5), batch_first=True))
    data = torch.randn(3, 11, 3)
    small = lp.quantise(layers, data)
    assert small(data)[0].shape == (3, 11, 5)
    assert (small(data)[0] - layers(data)[0]).abs().max() <= small.report.largest_error + SAME
    assert isinstance(lp.quantise(lp.GRU(3, 8), inputs_of()), lp.Recurrent)


def test_the_error_is_none_of_the_noise() -> None:
    report = lp.quantise(lp.Recurrent(EXAMPLES["Leaky learned"]()), inputs_of()).report
    assert report.largest_error <= NEAR["int8"] * report.largest_output


def test_gradients_are_refused() -> None:
    small = lp.quantise(lp.Recurrent(lp.GRU(3, 8)), inputs_of())
    inputs = inputs_of().requires_grad_()
    with pytest.raises(lp.errors.ArgumentError, match="a quantised network has no gradients"):
        small(inputs)
    with pytest.raises(lp.errors.ArgumentError, match="a quantised network has no gradients"):
        small.step(inputs[0], small.initial_state(3))
    assert not small(inputs.detach())[0].requires_grad
    with torch.no_grad():
        small(inputs)


def test_what_cannot_be_quantised_is_refused() -> None:
    both = lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4))
    small = lp.quantise(lp.GRU(3, 4), inputs_of())
    for net in (both, small, nn.Linear(3, 3), lp.Recurrent(lambda x, h: (h, h + x))):
        with pytest.raises(lp.errors.ArgumentError, match="is nothing that can be quantised"):
            lp.quantise(net, inputs_of())
    with pytest.raises(lp.errors.ArgumentError, match="the argument 'weights' is no type"):
        lp.quantise(lp.GRU(3, 4), inputs_of(), weights="int4")  # type: ignore[arg-type]
    with pytest.raises(lp.errors.ArgumentError, match="no float32 parameter"):
        lp.quantise(lp.GRU(3, 4).double(), inputs_of().double())


def test_int8_as_c(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.Stack(lp.GRU(3, 17), lp.LSTM(17, 9)))
    example = inputs_of(40)
    plain = lp.export(net, tmp_path / "plain.c", example=example)
    report = lp.export(net, tmp_path / "model.c", example=example, quantise="int8", data=inputs_of(50, 8))
    assert isinstance(plain, CReport)
    assert isinstance(report, CReport)
    assert report.quantised is not None
    assert report.ok
    assert report.largest_error < 1e-5
    assert report.sizes.constants < 0.45 * plain.sizes.constants  # scales and biases stay float
    assert "static const int8_t w_" in (tmp_path / "model.c").read_text()
    assert "by quantising" in str(report)
    with pytest.raises(lp.errors.ArgumentError, match="'data' stands without 'quantise'"):
        lp.export(net, tmp_path / "model.c", example=example, data=example)
    with pytest.raises(lp.errors.ArgumentError, match="'quantise' is no type"):
        lp.export(net, tmp_path / "model.c", example=example, quantise="int4")


def test_files_are_compared_without_rounded_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = torch.randn(20, 2, 66)
    for cell in (lp.GRU(66, 70), InputsFirst(66)):
        small = lp.quantise(lp.Recurrent(cell), example)
        for report in (
            lp.export(lp.Recurrent(cell), tmp_path / "model.c", example=example, quantise="int8"),
            lp.export(small, tmp_path / "model.c", example=example),
        ):
            assert report.ok
            assert report.largest_error < 2e-6
        assert small.engine == "auto"


def test_threads_in_a_team_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data = torch.randn(5, 3, 130)
    small = lp.quantise(lp.Recurrent(lp.LSTM(130, 257), engine="cpu"), data)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _, threads=threads: threads)
        results.append((small(data)[0], small(data[:, :1])[0], small.step(data[0, :1])[0]))
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize(("weights", "times"), [("int8", 2.0), ("bfloat16", 1.3)])
def test_a_step_of_one_row_is_faster(weights: Any, times: float) -> None:
    """The matrix is read from memory: a quarter or half of the bytes. Best of rounds side by side, on any machine."""
    torch.manual_seed(0)
    net = lp.Recurrent(lp.LSTM(1024, 1024)).requires_grad_(False)
    x = torch.randn(3, 1, 1024)
    small = lp.quantise(net, x, weights=weights)
    state = net.initial_state(1)
    taken: dict[Any, list[float]] = {net: [], small: []}
    for _ in range(60):
        for one in taken:
            begin = time.perf_counter()
            for _ in range(5):
                one.step(x[0], state)
            taken[one].append(time.perf_counter() - begin)
    quarter = {one: statistics.quantiles(seconds, n=4)[0] for one, seconds in taken.items()}
    assert quarter[net] > times * quarter[small], quarter
