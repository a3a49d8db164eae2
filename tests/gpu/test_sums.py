"""Sums over rows by the kernel of the engine gpu, on a GPU: right, and the same bits on every stream and in graphs."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from leporello.engine.gpu.sums.cuda_sums import CudaSums
from leporello.engine.gpu.sums.division import Sum
from leporello.engine.gpu.sums.row_sums import NUMBERS, RowSums
from tests.engine.gpu.test_sums import assert_right

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_right_and_the_same_from_run_to_run(dtype: torch.dtype) -> None:
    launcher = CudaSums()
    for rows, columns in product((1, 2, 63, 1003, 16384), (1, 3, 64, 100, 264, 3072)):
        one, other = torch.randn(2, rows, columns, device="cuda").to(dtype)
        mean, rate = torch.randn(rows, 1, device="cuda"), torch.rand(rows, 1, device="cuda")
        past = torch.rand(rows, device="cuda") < 0.3
        form = [Sum(columns, (0,), 0), Sum(columns, (1,), 0, 1), Sum(columns, (2,), 0, 1, 2, 3, past=4)]
        features = [columns, columns, 1, 1, 1]
        function = RowSums(form, features, [((1, columns), dtype)] * 3, dtype, launcher)
        made = function(one, other, mean, rate, past)
        a, b = one.double(), other.double()
        for own, terms in zip(made, (a, a * b, (a * ((b - mean) * rate))[~past]), strict=True):
            assert_right(own, terms, dtype)
        assert all(torch.equal(*pair) for pair in zip(made, function(one, other, mean, rate, past), strict=True))


def test_streams_and_graphs_do_not_share_counters() -> None:
    value = torch.randn(16384, 256, device="cuda").bfloat16()
    function = RowSums([Sum(256, (0,), 0)], [256], [((1, 256), torch.bfloat16)], torch.bfloat16, CudaSums())
    wanted = function(value)[0]
    streams = [torch.cuda.Stream() for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = function(value)[0]
    found = []
    for _ in range(20):
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(function(value)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(wanted, one) for one in [*found, captured])
