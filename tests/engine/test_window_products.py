"""Rows of a window times a large matrix by a kernel: right for every size, and used where it is faster."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import leporello as lp
from leporello.engine.cpu.window_products import MIN_ROWS, WindowProduct
from tests.close import assert_close
from tests.engine.results import Plain, found

pytestmark = pytest.mark.kernels

ROWS = (MIN_ROWS, MIN_ROWS + 1, 700)
SIZES = ((1, 1), (3, 40), (33, 31), (64, 32), (17, 129), (100, 260))
TYPES = (torch.float32, torch.float64)


def assert_product(rows: int, inner: int, outer: int, dtype: torch.dtype, *, turned: bool = True) -> None:
    """With a bias and without, into memory that is handed in and into its own."""
    value, bias = torch.randn(rows, inner, dtype=dtype), torch.randn(outer, dtype=dtype)
    matrix = torch.randn(outer, inner, dtype=dtype).t() if turned else torch.randn(inner, outer, dtype=dtype)
    multiply = WindowProduct(inner, outer, dtype)
    whole = torch.full((rows + 1, outer), 7.0, dtype=dtype)
    made = multiply(value, matrix, out=whole[:rows])
    assert made.data_ptr() == whole.data_ptr()
    assert (whole[rows] == 7).all(), "written behind the last row"
    wanted = value.double() @ matrix.double()
    most = (1e-13 if dtype == torch.float64 else 1e-5) * inner**0.5 * 5
    assert (made.double() - wanted).abs().max() <= most, f"{rows} rows, {inner} by {outer}"
    assert (multiply(bias, value, matrix).double() - wanted - bias.double()).abs().max() <= most


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_are_right_for_any_size(threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: threads)
    for rows, (inner, outer) in product(ROWS, SIZES):
        assert_product(rows, inner, outer, dtype)
    assert_product(600, 40, 70, dtype, turned=False)


def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    value, matrix = torch.randn(999, 50), torch.randn(50, 77)
    made = []
    for threads in (1, 2, 4):
        monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _, threads=threads: threads)
        made.append(WindowProduct(50, 77, torch.float32)(value, matrix))
    assert all(torch.equal(made[0], other) for other in made[1:])


def test_values_may_lie_apart_or_turned() -> None:
    whole, turned = torch.randn(MIN_ROWS, 90), torch.randn(20, MIN_ROWS).t()
    for value in (whole[:, 7:27], turned):
        matrix = torch.randn(20, 40)
        assert torch.allclose(WindowProduct(20, 40, torch.float32)(value, matrix), value @ matrix, atol=1e-5)


def test_few_rows_are_multiplied_by_torch() -> None:
    value, matrix, bias = torch.randn(MIN_ROWS - 1, 20), torch.randn(20, 40), torch.randn(40)
    multiply = WindowProduct(20, 40, torch.float32)
    assert torch.equal(multiply(value, matrix), value @ matrix)
    assert torch.equal(multiply(bias, value, matrix), torch.addmm(bias, value, matrix))


def called(net: lp.Recurrent) -> list[str]:
    """What runs at once in the forward sweep and is not torch's."""
    ((plan, _),) = net._plan_cache.plans.values()
    stages = [one.function.__self__.graph for one in plan.forward.program.timed if one.kernel is None]
    return [node.target.__name__ for graph in stages for node in graph.nodes if isinstance(node.target, WindowProduct)]


@pytest.mark.parametrize("faster", [True, False])
def test_large_products_outside_the_loop_are_the_kernels_where_that_is_faster(
    faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leporello.engine.cpu.window_products.is_faster", lambda: faster)
    cell, x = lp.LSTM(300, 160), torch.randn(20, 30, 300)
    net = lp.Recurrent(cell, engine="cpu")
    given = found(net, x)
    assert called(net) == (["multiply"] if faster else [])
    assert_close(given, found(Plain(cell), x), "an LSTM")
