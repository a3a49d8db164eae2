"""The geometry "levels" on the host: products of torch and a kernel for each level, recorded or not."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.gpu.division.geometry import LEVELS
from leporello.engine.gpu.division.plans import LARGE_BATCH, candidates
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.text.levels_text import LevelsText
from leporello.engine.targets import register
from leporello.errors import EngineRefusal
from tests.cells.examples import EXAMPLES, shaken
from tests.engine.gpu.heads import HeadsLSTM
from tests.engine.gpu.kernels import kernels_of
from tests.engine.gpu.test_on_host import TOLERANCES, MixedNorm, TwoProducts, results
from tests.engine.python_recorder import PythonRecorder, installed
from tests.gpu_on_host import HostBuilder, target_on_host
from tests.nets.twins import quickly, thoroughly

ENGINE = "gpu-host-levels"
ROUNDED = "gpu-host-levels-rounded"  # as with a torch whose products of 16-bit numbers have 16 bits
register(replace(target_on_host(ROUNDED, LEVELS), build=HostBuilder(LEVELS, float_sums=False).runner))


class Crossed(lp.Cell):
    """Units read the old state of others at the level that stores the new one, and at a later one too."""

    def __init__(self) -> None:
        super().__init__(h=6)
        self.U, self.W, self.V = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        fresh = torch.tanh(self.U(x) + self.W(h) + h.flip(1))
        return self.V(fresh).flip(1) * h.roll(1, 1), fresh


class ScaledHeads(lp.Cell):
    """A norm of the whole state beside heads, so that totals, heads and several levels come together."""

    def __init__(self) -> None:
        super().__init__(h=12)
        self.U, self.norm, self.R = nn.Linear(3, 12), nn.LayerNorm(12), nn.Parameter(torch.randn(3, 4, 4) / 2)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        across = (self.norm(h).view(-1, 3, 1, 4) @ self.R).flatten(1)
        h = torch.tanh(self.U(x) + across) * torch.softmax(h, 1)
        return h, h


class Mirrored(lp.Cell):
    """No product, and units read what others have made in the same step."""

    def __init__(self) -> None:
        super().__init__(h=6)
        self.U = nn.Linear(3, 6)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        fresh = torch.tanh(self.U(x) + h)
        h = 0.7 * fresh.flip(1) + 0.1 * fresh
        return h, h


CELLS = {"Mirrored": Mirrored, "TwoProducts": TwoProducts, "Crossed": Crossed, "ScaledHeads": ScaledHeads} | {
    f"heads {heads} x {size}": lambda heads=heads, size=size: HeadsLSTM(3, heads, size)
    for heads, size in ((2, 5), (3, 8))
}


@pytest.mark.parametrize("name", CELLS)
def test_levels_totals_and_heads(name: str) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(CELLS[name](), engine=ENGINE)
    inputs = torch.randn(6, 5, 3)
    resets = torch.rand(6, 5) < 0.3
    for arguments in ({}, {"lengths": torch.tensor([6, 1, 4, 2, 6]), "resets": resets}):
        report = lp.check_gradients(net, inputs, **arguments)
        assert report.ok, report


@pytest.mark.parametrize("hidden", [1, 3, 17, 65])
@pytest.mark.parametrize("batch", quickly([1, 5, 130], 1, 130))
@pytest.mark.parametrize("kind", ["LSTM", *thoroughly("GRU", "RNN", "LayerNormLSTM")])
def test_odd_sizes(kind: str, batch: int, hidden: int) -> None:
    if kind == "LayerNormLSTM" and hidden == 1:
        pytest.skip("the norm of one number is zero, and its gradient rounding alone")
    torch.manual_seed(0)
    net = lp.Recurrent(getattr(lp, kind)(3, hidden), engine=ENGINE)
    report = lp.check_gradients(net, torch.randn(4, batch, 3))
    assert report.ok, report


def test_what_no_kernel_has_written_is_not_read() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # new memory is then full of NaN
    try:
        for cell in (lp.LSTM(3, 5), lp.LayerNormLSTM(3, 5), Crossed(), ScaledHeads()):
            assert lp.check_gradients(lp.Recurrent(cell, engine=ENGINE), torch.randn(5, 3, 3)).ok
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        (ENGINE, "LSTM"),
        *(pytest.param(ENGINE, kind, marks=pytest.mark.slow) for kind in ("RNN", "GRU", "LayerNormLSTM")),
        *(pytest.param(ROUNDED, kind, marks=pytest.mark.slow) for kind in ("LSTM", "RNN", "GRU")),
    ],
)
def test_sixteen_bits(engine: str, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cell = getattr(lp, kind)(16, 48).to(dtype)
    inputs, weights = torch.randn(9, 19, 16).to(dtype), torch.randn(9, 19, 48)
    exact = results(lp.Recurrent(copy.deepcopy(cell).double(), engine="reference"), inputs.double(), weights)
    by_torch = results(lp.Recurrent(cell, engine="stepwise"), inputs, weights)
    by_levels = results(lp.Recurrent(cell, engine=engine), inputs, weights)
    for number, (found, other, wanted) in enumerate(zip(by_levels, by_torch, exact, strict=True)):
        error, torchs = ((value - wanted).norm() / wanted.norm() for value in (found, other))
        assert error < max(TOLERANCES[dtype], torchs), (number, error, torchs)


def test_a_layer_norm_with_float32_inside() -> None:
    cell, inputs = MixedNorm(), torch.randn(5, 9, 16).bfloat16()
    wanted = lp.Recurrent(copy.deepcopy(cell).double(), engine="reference")(inputs.double())[0]
    found = lp.Recurrent(cell, engine=ENGINE)(inputs)[0]
    assert (found - wanted).norm() / wanted.norm() < TOLERANCES[torch.bfloat16]


# ---- recorded


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> PythonRecorder:
    return installed(monkeypatch)


def run(net: Any, inputs: Tensor, **arguments: Any) -> list[Tensor]:
    net.zero_grad(set_to_none=True)
    outputs, state = net(inputs, **arguments)
    leaves = torch.utils._pytree.tree_leaves((outputs, state))
    sum(leaf.cos().sum() for leaf in leaves).backward()
    return [*(leaf.detach() for leaf in leaves), *(parameter.grad for parameter in net.parameters())]


def check(net: Any, monkeypatch: pytest.MonkeyPatch, *lengths: int, batch: int = 5, **arguments: Any) -> None:
    """Calls of several lengths give the bits that they give without recordings."""
    for length in lengths:
        inputs = torch.randn(length, batch, 3)
        monkeypatch.setenv("LEPORELLO_CUDA_GRAPHS", "0")
        expected = run(net, inputs, **arguments)
        monkeypatch.setenv("LEPORELLO_CUDA_GRAPHS", "1")
        for _ in range(3):
            for one, other in zip(run(net, inputs, **arguments), expected, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("name", quickly(EXAMPLES, "LSTM", "GRU", "LayerNormLSTM", "ElmanJordan"))
def test_recorded_steps_give_the_same_bits(
    name: str, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()).float(), engine=ENGINE)
    check(net, monkeypatch, 9, 5)
    assert recorder.replayed > 0 or "step by step" not in net.explain(torch.zeros(9, 5, 3))


@pytest.mark.parametrize("length", [1, 3, 4, 7, 32, 33, 71])
def test_parts_of_every_length(length: int, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    check(lp.Recurrent(Crossed(), engine=ENGINE), monkeypatch, length)
    assert (recorder.replayed > 0) == (length >= 4)


def test_one_recording_serves_calls_of_all_lengths(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.RNN(3, 5), engine=ENGINE)
    inputs = torch.randn(96, 5, 3)
    for length in (32, 64, 96, 64, 32):
        net(inputs[:length])
    assert (recorder.recorded, recorder.replayed) == (1, 2 + 3 + 2 + 1)
    assert "captured in CUDA graphs of 32 steps" in net.explain(inputs)


def test_matrices_that_move_are_copied(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, inputs = lp.Recurrent(lp.LSTM(3, 7), engine=ENGINE), torch.randn(8, 5, 3)
    held = []
    for _ in range(5):
        with torch.no_grad():
            for parameter in net.parameters():
                held.append(parameter.data)
                parameter.data = parameter.data * 0.9
        found = run(net, inputs)
        monkeypatch.setenv("LEPORELLO_CUDA_GRAPHS", "0")
        assert all(torch.equal(a, b) for a, b in zip(found, run(net, inputs), strict=True))
        monkeypatch.setenv("LEPORELLO_CUDA_GRAPHS", "1")
    assert recorder.recorded == 2  # forward and backward, once their matrices are known to move


def test_where_nothing_can_be_recorded_the_steps_run_all_the_same(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(Crossed(), engine=ENGINE)
    recorder.refuses = "an operator waits for the GPU"
    check(net, monkeypatch, 39)
    assert recorder.replayed == 0
    assert "not captured in CUDA graphs: an operator waits" in net.explain(torch.randn(39, 5, 3))
    other = lp.Recurrent(Crossed(), engine=ENGINE)
    recorder.refuses, recorder.busy = None, True
    check(other, monkeypatch, 9)
    assert (recorder.recorded, recorder.replayed) == (0, 0)


def test_the_state_may_be_passed_on(recorder: PythonRecorder) -> None:
    net, inputs = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE), torch.randn(48, 4, 3)
    with torch.no_grad():
        for _ in range(3):
            whole, _ = net(inputs)
            state, pieces = None, []
            for piece in inputs.split([1, 7, 40]):
                outputs, state = net(piece, state)
                pieces.append(outputs)
            assert torch.equal(torch.cat(pieces), whole)


# ---- what is chosen, and what is said


def schedules(cell: lp.Cell, dtype: torch.dtype = torch.bfloat16) -> list[Schedule]:
    return [schedule_of(kernel) for kernel in kernels_of(cell, 3, dtype)]


def test_it_is_chosen_where_nothing_fits_on_the_chip() -> None:
    for schedule in schedules(lp.LSTM(3, 4096), torch.float32):
        (text,) = candidates(schedule, 16, 132, True)
        assert text.geometry == LEVELS


def test_it_is_one_more_choice_for_large_batches() -> None:
    schedule = schedules(lp.LSTM(3, 64))[0]
    chosen = [
        [text.geometry == LEVELS for text in candidates(schedule, batch, 132, True, most)]
        for batch, most in ((LARGE_BATCH, 8), (LARGE_BATCH - 1, 8), (LARGE_BATCH, 1))
    ]
    assert chosen == [[False] * 8 + [True], [False] * 8, [False]]
    independent = schedules(lp.IndRNN(3, 64))[0]
    assert all(text.geometry != LEVELS for text in candidates(independent, LARGE_BATCH, 132, True, 8))


def test_the_gradient_of_an_lstm_is_a_product_and_a_kernel_a_step() -> None:
    forward, backward = (LevelsText(schedule, True) for schedule in schedules(lp.LSTM(3, 5)))
    assert (forward.joint, len(forward.kernels), len(forward.memory.products)) == (None, 1, 1)
    assert backward.joint is not None
    assert len(backward.memory.products) == 1


def test_levels_with_totals_or_values_of_other_units_between_them_are_not_joined() -> None:
    for cell in (lp.LayerNormLSTM(3, 5), Crossed(), Mirrored()):
        for schedule in schedules(cell):
            multiplied = any(one.level == 0 for one in schedule.multiplications)
            added = any(one.level == 0 for one in schedule.totals)
            exchanged = any(vector.by_units for vector in schedule.vectors)
            if multiplied or added or exchanged:
                assert LevelsText(schedule, True).joint is None


def test_explain_says_what_runs() -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    net(inputs)
    text = net.explain(inputs)
    assert "each level is a kernel, a thread for each unit of a row, 128 in a block" in text
    assert "1 kernel and 1 product of torch a step; captured in CUDA graphs of up to 32 steps by the second" in text
    rounded = lp.Recurrent(lp.LSTM(3, 5), engine=ROUNDED)
    rounded(inputs)
    assert "whose sums are rounded to 16 bits" in rounded.explain(inputs)


def test_products_of_two_types_are_refused() -> None:
    (schedule, *_) = schedules(lp.RNN(3, 5))
    fixed = schedule.kernel.matrices[0].fixed
    buffers = list(schedule.kernel.buffers["fixed"])
    buffers[fixed] = replace(buffers[fixed], dtype=torch.float32)
    schedule.kernel = replace(schedule.kernel, buffers={**schedule.kernel.buffers, "fixed": tuple(buffers)})
    with pytest.raises(EngineRefusal, match=r"no product of torch.bfloat16 \('h'\) with a matrix of torch.float32"):
        LevelsText(schedule, True)
