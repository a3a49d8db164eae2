"""Operations and seconds of kernels are counted where they run."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import FORWARD, TRAINING, Case
from benchmarks.contestants import Engine
from benchmarks.kernels import clocked, operations
from benchmarks.sizes import Size
from leporello.engine.cpu.runner import CpuRunner
from leporello.kernel.description import Buffer, Kernel, Pointwise, Product

INPUTS, HIDDEN = 3, 5
CASE = Case("RNN", Size(7, 2, INPUTS, HIDDEN))


def test_a_product_counts_two_operations_for_each_number_of_its_matrix() -> None:
    dtype = torch.float32
    left, out = Buffer("x", "read", 0, (6,), dtype, dtype), Buffer("y", "scratch", 0, (8,), dtype, dtype)
    product = Product(
        left, offset=0, heads=2, inner=3, outer=4, matrix=0, out=out, arithmetic=dtype, accumulation=dtype
    )
    blocks = (product, Pointwise(sizes=(8,), stores=()), product)
    assert operations(Kernel("k", False, blocks, {}, (), dtype, ())) == 2 * (2 * 2 * 3 * 4)


@pytest.mark.kernels
def test_the_clock_counts_the_products_of_both_sweeps() -> None:
    task = Engine("cpu").prepare(CASE.build(), TRAINING)
    with clocked() as clock:
        task()
    rows = 7 * 2
    assert clock.forward.operations == rows * 2 * HIDDEN * (HIDDEN + INPUTS)  # the product of the inputs is drawn in
    assert clock.backward.operations == rows * 2 * HIDDEN * HIDDEN
    assert 0 < clock.forward.seconds < clock.seconds


@pytest.mark.kernels
def test_forward_alone_runs_no_backward_kernel() -> None:
    task = Engine("cpu").prepare(CASE.build(), FORWARD)
    with clocked() as clock:
        task()
    assert clock.forward.operations > 0
    assert clock.backward.seconds == clock.backward.operations == 0


def test_the_clock_leaves_kernels_as_it_found_them() -> None:
    before = CpuRunner.begin
    with clocked():
        assert CpuRunner.begin is not before
    assert CpuRunner.begin is before


def test_the_clock_is_taken_away_after_an_error() -> None:
    before = CpuRunner.begin
    with pytest.raises(ZeroDivisionError), clocked():
        _ = 1 / 0
    assert CpuRunner.begin is before
