"""How the work of a step is divided: levels, vectors, totals, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import leporello as lp
from leporello.engine.gpu.division.geometry import Geometry, tilings
from leporello.engine.gpu.division.plans import candidates
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.errors import EngineRefusal
from tests.engine.gpu.heads import HeadsLSTM
from tests.engine.gpu.kernels import kernels_of


def schedules(kind: str, hidden: int = 12, dtype: torch.dtype = torch.bfloat16) -> list[Schedule]:
    """Of the forward and of the backward kernel."""
    return [schedule_of(kernel) for kernel in kernels_of(getattr(lp, kind)(3, hidden), 3, dtype)]


def test_an_lstm_has_one_level_forward_and_two_backward() -> None:
    forward, backward = schedules("LSTM")
    assert (forward.levels, backward.levels) == (1, 2)
    assert [(v.of.name, v.space, len(v.places)) for v in forward.vectors] == [("h", 12, 1)]
    assert [(v.space, len(v.places)) for v in backward.vectors] == [(12, 4)]  # the gates' gradients


def test_the_state_that_no_product_reads_stays_in_registers() -> None:
    forward, _ = schedules("LSTM")
    assert {v.state.name for v in forward.vectors if v.state} == {"h"}


def test_a_layer_norm_is_totals_of_all_units() -> None:
    forward, _ = schedules("LayerNormLSTM")
    assert {total.operator for total in forward.totals} == {"sum"}
    assert forward.levels == 5


def test_a_step_without_products_exchanges_nothing() -> None:
    assert all(schedule.independent for schedule in schedules("IndRNN"))


def test_sums_are_sent_where_they_are_shorter_than_the_vector() -> None:
    forward, backward = schedules("LSTM", 512)
    shape = Geometry("cluster", 16, 1)
    assert [tiling.scattered for tiling in tilings(forward, shape)] == [False]
    assert [tiling.scattered for tiling in tilings(backward, shape)] == [True]
    assert [tiling.scattered for tiling in tilings(backward, Geometry("block", 1, 1))] == [False]


def test_a_small_net_is_one_block_and_a_large_one_is_not() -> None:
    small, large = schedules("RNN", 32)[0], schedules("LSTM", 1024)[0]
    assert candidates(small, 16, 132, True)[0].geometry.blocks == 1
    assert candidates(large, 16, 132, True)[0].geometry.blocks >= 32


def test_clusters_are_not_used_where_there_are_none() -> None:
    shapes = {text.geometry.exchange for text in candidates(schedules("LSTM", 256)[0], 16, 108, False, 8)}
    assert "cluster" not in shapes


def test_heads_have_groups_of_blocks_of_their_own() -> None:
    forward, backward = [schedule_of(kernel) for kernel in kernels_of(HeadsLSTM(6, 3, 16), 6, torch.bfloat16)]
    assert (forward.heads, backward.heads) == (3, 3)
    assert (forward.levels, backward.levels) == (1, 2)  # a unit has its four gates from the product, wherever they are
    text = candidates(forward, 20, 132, True)[0]
    assert text.geometry.heads == 3
    assert text.geometry.groups(20) % 3 == 0
    assert text.inputs.ringed  # the gates of a head are neighbours in memory


class MixedHeads(HeadsLSTM):
    """Every unit reads the largest of all: heads depend on each other."""

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        h, c = state
        return super().forward(x, (h * h.amax(1, keepdim=True), c))


def test_heads_that_read_each_other_share_their_blocks() -> None:
    assert schedule_of(kernels_of(MixedHeads(6, 3, 8), 6, torch.float32, gradient=False)[0]).heads == 1


def test_what_does_not_fit_on_the_chip_is_refused() -> None:
    with pytest.raises(EngineRefusal, match="do not fit on the chip"):
        KernelText(schedules("LSTM", 4096, torch.float32)[0], Geometry("grid", 128, 1))


def test_the_text_of_a_kernel_is_the_same_for_the_same_kernel() -> None:
    texts = [KernelText(schedules("GRU")[0], Geometry("grid", 3, 2)).text("host.h", {}) for _ in range(2)]
    assert texts[0] == texts[1]


class Sorted(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=5)
        self.W = torch.nn.Linear(5, 5)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.W(h) + x.sum(1, keepdim=True)).topk(5, 1).values
        return h, h


def test_what_orders_a_row_is_refused_by_name() -> None:
    (kernel, *_) = kernels_of(Sorted(), 3, torch.float32, gradient=False)
    with pytest.raises(EngineRefusal, match="topk, sort"):
        schedule_of(kernel)
