"""Sums over rows by the engine gpu's kernel, built for the host: right for every size, type, mask and layout."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.gpu.driver import compile_text, nvrtc_refusal
from leporello.engine.gpu.sums.division import BLOCKS, MOST_TERMS, Sum, divided
from leporello.engine.gpu.sums.row_sums import NUMBERS, RowSums, SumsKernel
from tests.engine.results import Plain, found
from tests.gpu_on_host import HostSums
from tests.nets.twins import quickly, thoroughly

ROWS = (1, 2, 63, 257, 1003)
COLUMNS = (1, 3, 8, 64, 100, 264)
ROUNDING = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}  # of one number


def sums_of(values: list[Tensor], *sums: Sum) -> list[Tensor]:
    """One result for each sum, of values [rows, ...]."""
    features = [value[0].numel() for value in values]
    results = [((1, one.columns), torch.float32 if one.wide else values[0].dtype) for one in sums]
    return RowSums(sums, features, results, values[0].dtype, HostSums())(*values)


def assert_right(own: Tensor, terms: Tensor, dtype: torch.dtype) -> None:
    """Within one rounding of the result, those of float32 in between, and the smallest number of float16."""
    wanted, size = terms.sum(0, keepdim=True), terms.abs().sum(0, keepdim=True)
    assert own.shape == wanted.shape
    assert ((own.double() - wanted).abs() <= wanted.abs() * ROUNDING[dtype] + size * 1e-6 + 2**-24).all()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_right_for_every_size(dtype: torch.dtype) -> None:
    for rows, columns in product(ROWS, COLUMNS):
        one, other = torch.randn(2, rows, columns).to(dtype)
        mean, rate, past = torch.randn(rows, 1), torch.rand(rows, 1), torch.rand(rows) < 0.3
        form = [Sum(columns, (0,), 0), Sum(columns, (1,), 0, 1), Sum(columns, (2,), 0, 1, 2, 3)]
        form += [Sum(columns, (3,), 1, past=4), Sum(columns, (4,), 0, 1, 2, 3, past=4)]
        made = sums_of([one, other, mean, rate, past], *form)
        a, b = one.double(), other.double()
        normalised = a * ((b - mean) * rate)
        for own, terms in zip(made, (a, a * b, normalised, b[~past], normalised[~past]), strict=True):
            assert own.dtype == dtype
            assert_right(own, terms, dtype)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_rows_may_be_left_out_whatever_stands_there(share: float) -> None:
    past = torch.rand(300) < share
    value = torch.randn(300, 72)
    value[past] = float("nan")
    (own,) = sums_of([value, past], Sum(72, (0,), 0, past=1))
    assert_right(own, value[~past].double(), torch.float32)


def test_nan_and_infinity_reach_the_sums_they_belong_to_and_no_others() -> None:
    value = torch.ones(3000, 40, dtype=torch.bfloat16)
    value[200, 3], value[5, 39] = float("nan"), float("inf")
    (own,) = sums_of([value], Sum(40, (0,), 0))
    assert own.isnan().nonzero().tolist() == [[0, 3]]
    assert own.isinf().nonzero().tolist() == [[0, 39]]


def test_values_may_be_anywhere_in_memory() -> None:
    """Apart, turned, expanded, and from an address on that is no multiple of 16 bytes."""
    whole = torch.randn(200, 96)
    for value in (whole[:, 8:40], whole[:, 3:35], whole[3::2, :32], whole.t()[:64], whole[:1].expand(7, 96)):
        (own,) = sums_of([value], Sum(value.shape[1], (0,), 0))
        assert_right(own, value.double(), torch.float32)


def test_rows_may_have_several_axes() -> None:
    value, past = torch.randn(150, 6, 16), torch.rand(150) < 0.3
    wide = value.double()
    spread = {
        (6, 16, 1): wide.flatten(0, 1),  # over the first axis: rows like any other
        (16, 1, 16): wide.movedim(2, 1).flatten(0, 1),  # over the last axis
        (3, 32, 1): wide[:, ::2].flatten(0, 1),  # over every second one
    }
    for (inner, step, along), terms in spread.items():
        one = Sum(terms.shape[1], (0,), 0, past=1, inner=inner, inner_step=step, along=along)
        kept = terms.view(150, inner, -1)[~past].flatten(0, 1)
        (own,) = sums_of([value, past], one)
        assert_right(own, kept, torch.float32)


def test_a_result_may_be_wanted_twice_and_in_float32() -> None:
    value = torch.randn(70, 24).bfloat16()
    sums = [Sum(24, (0, 1), 0), Sum(24, (2,), 0, wide=True)]
    results = [((24,), torch.bfloat16), ((24,), torch.bfloat16), ((24,), torch.float32)]
    one, again, wide = RowSums(sums, [24], results, torch.bfloat16, HostSums())(value)
    assert torch.equal(one, again)
    assert one.data_ptr() != again.data_ptr()
    assert torch.equal(wide.bfloat16(), one)


def test_many_sums_are_several_launches() -> None:
    values = [torch.randn(40, 5) for _ in range(MOST_TERMS + 3)]
    made = sums_of(values, *(Sum(5, (index,), index) for index in range(len(values))))
    for own, value in zip(made, values, strict=True):
        assert_right(own, value.double(), torch.float32)


@pytest.mark.parametrize("shape", [(1, 1), (1024, 256), (16384, 64), (16384, 4096), (32768, 3072)])
def test_a_launch_has_about_as_many_blocks_as_run_at_once(shape: tuple[int, int]) -> None:
    rows, columns = shape
    division = divided([Sum(columns, (0,), 0)], rows, [columns], [True], 2)
    assert division.tiles <= division.blocks <= max(BLOCKS, division.tiles)
    assert division.blocks >= min(BLOCKS // 2, -(-rows * columns // 16384))  # 32 KiB each is little


def test_blocks_are_added_in_the_same_order_whichever_comes_last() -> None:
    value = torch.randn(5000, 64)
    first, second = (
        RowSums([Sum(64, (0,), 0)], [64], [((64,), torch.float32)], torch.float32, HostSums(backwards))(value)[0]
        for backwards in (False, True)
    )
    assert torch.equal(first, second)


@pytest.mark.skipif(nvrtc_refusal() is not None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", thoroughly("sm_80", "sm_90", "sm_100"))
def test_the_kernel_compiles(architecture: str) -> None:
    for dtype, wide in product(NUMBERS, (True, False)):
        assert compile_text(SumsKernel(dtype, wide, 0x3FFF, MOST_TERMS).text("device.cuh"), architecture)


# ---- in a sweep


def called(net: lp.Recurrent, sweep: str = "backward") -> list[str]:
    """The operators of torch, and functions of the engine, that a sweep calls beside its kernels."""
    ((plan, _),) = net._plan_cache.plans.values()
    views = ("t", "transpose", "permute", "unsqueeze", "getitem", "view", "reshape", "slice")
    timed = [one for one in getattr(plan, sweep).program.timed if one.kernel is None]
    names = [
        getattr(node.target, "__name__", str(node.target)).split(".")[0]
        for one in timed
        for node in one.function.__self__.graph.nodes
        if node.op == "call_function"
    ]
    return sorted(name for name in names if name not in views)


LENGTHS, RESETS = [7, 3, 5, 1], torch.arange(28).view(7, 4) % 5 == 3
CELLS = {
    "LSTM": lambda: lp.LSTM(3, 5),
    "GRU": lambda: lp.GRU(3, 5),
    "PeepholeLSTM": lambda: lp.PeepholeLSTM(3, 5),
    "Leaky": lambda: lp.Leaky(3, 5, 2, alpha=0.2),
    "LayerNormLSTM": lambda: lp.LayerNormLSTM(3, 5),
}
# Products for gradients of matrices, one launch of sums, and what a cell has beside these.
BACKWARD = {
    "LSTM": ["mm", "mm", "sums"],
    "GRU": ["mm", "mm", "sums"],
    "PeepholeLSTM": ["mm", "mm", "sums"],
    "Leaky": ["mm", "mm", "mm", "mm", "sums"],
    "LayerNormLSTM": ["mm", "mm", "native_layer_norm_backward", "sums"],
}


@pytest.mark.parametrize(
    "arguments", [{}, {"lengths": LENGTHS}, {"resets": RESETS}], ids=["plain", "lengths", "resets"]
)
@pytest.mark.parametrize("name", quickly(CELLS, "LSTM", "LayerNormLSTM"))
def test_a_backward_sweep_has_one_launch_of_sums(name: str, arguments: dict[str, object]) -> None:
    cell, x = CELLS[name](), torch.randn(7, 4, 3)
    net = lp.Recurrent(cell, engine="gpu-host-levels")
    net(x, **arguments)[0].sum().backward()
    masked = ["masked_fill"] if name == "Leaky" and "lengths" in arguments else []  # its outputs are made at once
    assert called(net) == sorted([*BACKWARD[name], *masked])
    assert lp.check_gradients(net, x, **arguments).ok


@pytest.mark.parametrize("name", CELLS)
def test_lengths_cost_one_operator_forward(name: str) -> None:
    found = []
    for arguments in ({}, {"lengths": LENGTHS}):
        net = lp.Recurrent(CELLS[name](), engine="gpu-host-levels")
        net(torch.randn(7, 4, 3), **arguments)[0].sum().backward()
        found.append(called(net, "forward"))
    masked = ["masked_fill"] if name == "Leaky" else []
    assert found[1] == sorted([*found[0], "where", *masked])


def test_equal_gradients_have_memory_of_their_own() -> None:
    cell = lp.LSTM(3, 5)
    lp.Recurrent(cell, engine="gpu-host-levels")(torch.randn(7, 4, 3))[0].sum().backward()
    assert torch.equal(cell.b.grad, cell.c.grad)
    cell.b.grad.zero_()
    assert cell.c.grad.any()


class Shifted(lp.Cell):
    """A vector is added to the outputs: its gradient is the sum of those that come in."""

    def __init__(self) -> None:
        super().__init__(h=5)
        self.U, self.w, self.shift = nn.Linear(3, 5), nn.Parameter(torch.rand(5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.U(x) + self.w * h)
        return h + self.shift, h


def test_a_sum_skips_the_padding_of_a_gradient_as_it_comes_in() -> None:
    net, x = lp.Recurrent(Shifted(), engine="gpu-host-levels"), torch.randn(7, 4, 3)
    outputs = net(x, lengths=LENGTHS)[0]
    outputs.backward(torch.randn(7, 4, 5))
    ((plan, _),) = net._plan_cache.plans.values()
    reads = [place.name for one in plan.backward.program.timed if one.kernel is None for place, _ in one.varying]
    assert {"grad_o", "input_call_past"} <= set(reads)
    assert called(net) == ["mm", "sums"]
    assert lp.check_gradients(net, x, lengths=LENGTHS).ok


class Spread(lp.Cell):
    """Parameters that are shared by the elements of a row in several ways."""

    def __init__(self) -> None:
        super().__init__(h=(4, 6))
        self.W, self.rate = nn.Linear(3, 24), nn.Parameter(torch.rand(4, 1))
        self.shift, self.slope = nn.Parameter(torch.randn(6)), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.W(x).view(h.shape) + self.rate * h + self.slope * h.flip(2) + self.shift)
        return h.flatten(1), h


@pytest.mark.parametrize("batch", [1, 3])
def test_parameters_of_rows_with_several_axes(batch: int) -> None:
    cell, x = Spread(), torch.randn(5, batch, 3)
    own, wanted = (found(net, x) for net in (lp.Recurrent(cell, engine="gpu-host-levels"), Plain(cell)))
    for name in wanted:
        assert torch.allclose(own[name], wanted[name], rtol=1e-4, atol=1e-5), name
