"""Sums over all rows by kernels: right for every size, type and number of threads, and the same from run to run."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu.row_sums import RowSums, SumShapes
from leporello.engine.row_sums import Spread
from tests.close import assert_close
from tests.engine.results import Plain, found
from tests.nets.twins import agrees_with_the_plain_loop

pytestmark = pytest.mark.kernels

ROWS = (1, 2, 127, 128, 129, 1000)
SHARES = (0.0, 0.3, 0.9, 1.0)  # of rows that are left out
COLUMNS = ((1, 1), (3, 2), (5, 4), (16, 33), (17, 40), (40, 17), (64, 64), (129, 32), (131, 3), (200, 100), (260, 32))


def totals(form: SumShapes, *values: Tensor) -> list[Tensor]:
    return RowSums(form, values[0].dtype)(*values)


def exact(first: Tensor, second: Tensor | None) -> Tensor:
    wide = first.double()
    return wide.sum(0, keepdim=True) if second is None else wide.t() @ second.double()


def assert_sums(rows: int, m: int, n: int, dtype: torch.dtype) -> None:
    first, second, third = (torch.randn(rows, size, dtype=dtype) for size in (m, n, m))
    form = ((0, 1, m, n), (0, -1, m, 1), (2, 1, m, n), (1, -1, n, 1))
    made = totals(form, first, second, third)
    pairs = ((first, second), (first, None), (third, second), (second, None))
    for own, pair in zip(made, pairs, strict=True):
        wanted = exact(*pair)
        assert own.shape == wanted.shape
        assert own.dtype == dtype
        most = 1e-12 if dtype == torch.float64 else 1e-5
        assert (own.double() - wanted).abs().max() <= most * rows**0.5 * 4, f"{rows} rows, {m} and {n} columns"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 6])
def test_sums_are_right_for_any_size_and_number_of_threads(
    threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small work is divided too, which only a test wants."""
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: threads)
    for rows, (m, n) in product(ROWS, COLUMNS):
        assert_sums(rows, m, n, dtype)


def test_values_may_lie_apart_or_turned() -> None:
    whole = torch.randn(50, 90, dtype=torch.float64)
    turned = torch.randn(20, 50, dtype=torch.float64).t()
    first, second = whole[:, 7:60], whole[:, 60:]
    made = totals(((0, 1, 53, 30), (2, 0, 20, 53), (2, -1, 20, 1)), first, second, turned)
    for own, wanted in zip(made, (first.t() @ second, turned.t() @ first, turned.sum(0, keepdim=True)), strict=True):
        assert torch.allclose(own, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_sums_are_the_same_from_run_to_run(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: threads)
    first, second = torch.randn(3000, 96), torch.randn(3000, 40)
    form = ((0, 1, 96, 40), (1, -1, 40, 1))
    once = totals(form, first, second)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(once, totals(form, first, second), strict=True))


def test_nan_and_infinity_reach_the_sums_they_belong_to_and_no_others() -> None:
    first, second = torch.ones(300, 40), torch.ones(300, 50)
    first[200, 3], second[5, 49] = float("nan"), float("inf")
    made, sums = totals(((0, 1, 40, 50), (0, -1, 40, 1)), first, second)
    assert made[3].isnan().all()
    assert made[[0, 39], 49].isinf().all()
    assert made[4:, :49].isfinite().all()
    assert sums[0].isnan().nonzero().tolist() == [[3]]


def called(net: lp.Recurrent) -> list[str]:
    """What the stages of the backward sweep call that run all steps at once."""
    ((plan, _),) = net._plan_cache.plans.values()
    timed = [one for one in plan.backward.program.timed if one.kernel is None and not one.inside]
    return [
        str(getattr(node.target, "__name__", node.target))
        for one in timed
        for node in one.function.__self__.graph.nodes
    ]


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_gradients_of_matrices_and_biases_are_one_call_of_the_engine_cpu(engine: str) -> None:
    cell = lp.LSTM(3, 5).double()
    net = lp.Recurrent(cell, engine=engine)
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    net(x)[0].sum().backward()
    made = called(net)
    assert sum("totals" in name for name in made) == (engine == "cpu")
    assert sum("mm" in name for name in made) == (0 if engine == "cpu" else 2)
    assert sum("sum" in name for name in made) == (engine != "cpu")
    assert_close(found(net, x), found(Plain(cell), x), engine)


def test_what_is_no_sum_over_rows_stays_as_it_is() -> None:
    """A gradient that goes on to the inputs is a product of rows, and runs as before."""
    net = lp.Recurrent(lp.GRU(3, 5).double(), engine="cpu")
    x = torch.randn(7, 4, 3, dtype=torch.float64, requires_grad=True)
    net(x)[0].sum().backward()
    made = called(net)
    assert sum("totals" in name for name in made) == 1
    assert sum("mm" in name for name in made) <= 1


def test_sums_of_each_large_value_have_a_turn_of_their_own() -> None:
    """What the first turn has read is let go before there is memory for the results of the second."""
    for hidden, turns in ((5, 1), (90, 2)):
        cell = lp.GRU(3, hidden).double()
        net = lp.Recurrent(cell, engine="cpu")
        x = torch.randn(7, 4, 3, dtype=torch.float64)
        net(x)[0].sum().backward()
        assert sum("totals" in name for name in called(net)) == turns
        ((plan, _),) = net._plan_cache.plans.values()
        stages = [one for one in plan.backward.program.timed if one.kernel is None]
        assert len(stages) == turns
        assert all(any(node in one.done for node, _ in one.varying) for one in stages)
        assert_close(found(net, x), found(Plain(cell), x), f"{hidden} units")


def test_a_parameter_without_numbers_has_a_gradient_without_numbers() -> None:
    class Empty(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=5)
            self.W = nn.Parameter(torch.randn(5, 5, dtype=torch.float64) / 3)
            self.U = nn.Parameter(torch.randn(3, 0, dtype=torch.float64))
            self.V = nn.Parameter(torch.randn(3, 5, dtype=torch.float64))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(h @ self.W + x @ self.V)
            return torch.cat([h, torch.tanh(x @ self.U)], 1), h

    cell, x = Empty(), torch.randn(4, 3, 3, dtype=torch.float64)
    assert_close(found(lp.Recurrent(cell, engine="cpu"), x), found(Plain(cell), x), "no columns")
    assert cell.U.shape == (3, 0)


def assert_left_out(rows: int, m: int, n: int, share: float) -> None:
    """About such a share of the rows holds what would spoil every sum."""
    past = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < share
    first, second = (torch.randn(rows, size, dtype=torch.float64) for size in (m, n))
    first[past], second[past] = float("nan"), float("inf")
    form = ((0, 1, m, n), (0, -1, m, 1), (1, -1, n, 1))
    made = RowSums(form, torch.float64, past=True)(first, second, past)
    rest = [value[~past] for value in (first, second)]
    for own, pair in zip(made, (rest, (rest[0], None), (rest[1], None)), strict=True):
        assert (own - exact(*pair)).abs().max() <= 1e-11, f"{rows} rows, {m} and {n} columns, {share} left out"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_may_be_left_out_whatever_stands_there(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: threads)
    for rows, (m, n), share in product(ROWS, COLUMNS, SHARES):
        assert_left_out(rows, m, n, share)


# heads, inner elements, columns of the first and of the second value
SEVERAL_AXES = (
    (1, 3, 5, 4),
    (1, 32, 20, 20),
    (1, 128, 17, 2),
    (3, 1, 8, 40),
    (4, 5, 33, 3),
    (2, 16, 16, 70),
    (1, 70, 1, 1),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_may_have_several_axes_in_any_order(
    threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both values in turn the inner elements, or the columns, are contiguous."""
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: threads)
    for rows, (heads, inner, m, n), order in product((1, 2, 60, 300), SEVERAL_AXES, range(4)):
        values, steps, exactly = [], [], []
        for columns, turned in ((m, order % 2), (n, order // 2)):
            sizes = (heads, columns, inner) if turned else (heads, inner, columns)
            value = torch.randn(rows, *sizes, dtype=dtype)
            values.append(value)
            steps.append((0, inner * columns, 1, inner) if turned else (0, inner * columns, columns, 1))
            exactly.append((value.transpose(2, 3) if turned else value).double())
        spread = Spread(heads, inner, *steps)
        sizes = [heads * inner * columns for columns in (m, n)]
        form, results = ((0, 1, m, n), (0, -1, m, 1)), [(heads, m, n), (heads, m)]
        made = RowSums(form, dtype, False, [spread, spread], results, sizes)(*values)
        wanted = [torch.einsum("rhkm,rhkn->hmn", *exactly), exactly[0].sum((0, 2))]
        most = 1e-12 if dtype == torch.float64 else 1e-5
        for own, right in zip(made, wanted, strict=True):
            assert (own.double() - right).abs().max() <= most * (rows * inner) ** 0.5 * 4, (rows, heads, inner, m, n)


class Graph(lp.Cell):
    """Nodes that are mixed, each transformed alike, and by matrices of their own; sums over rows and nodes."""

    def __init__(self) -> None:
        super().__init__(h=(5, 4))
        self.mixed, self.inner = nn.Parameter(torch.randn(5, 5) / 3), nn.Linear(3, 5 * 4)
        self.alike, self.apart = nn.Linear(8, 4), nn.Parameter(torch.randn(5, 4, 4) / 3)
        self.rate = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.inner(x).view(h.shape), h], -1)
        new = self.alike(torch.einsum("nm,bmf->bnf", self.mixed, both))
        new = new + torch.einsum("bnf,nfg->bng", h, self.apart)
        h = h + self.rate * (torch.tanh(new) - h)
        return h.flatten(1), h


@pytest.mark.parametrize("batch", [1, 4])
def test_sums_over_rows_and_other_axes_are_of_the_same_call(batch: int) -> None:
    cell = Graph().double()
    net = lp.Recurrent(cell, engine="cpu")
    x = torch.randn(7, batch, 3, dtype=torch.float64)
    net(x)[0].sum().backward()
    made = called(net)
    assert sum("totals" in name for name in made) == 1
    assert not any(name in ("mm", "bmm", "sum", "aten.mm.default", "aten.sum.default") for name in made), made
    assert_close(found(net, x), found(Plain(cell), x), "graph")
    agrees_with_the_plain_loop(net, x, lengths=[7, 3, 5, 1][:batch])


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_sums_of_a_call_with_lengths_leave_out_the_padding(kind: str) -> None:
    """Nothing is cleaned for them: they read the inputs as they came."""
    cell = getattr(lp, kind)(3, 5).double()
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    x[3:, 1], x[1:, 3] = float("nan"), float("inf")
    net, lengths = lp.Recurrent(cell, engine="cpu"), [7, 3, 5, 1]
    net(x, lengths=lengths)[0].sum().backward()
    ((plan, _),) = net._plan_cache.plans.values()
    (sums,) = [one.direct for one in plan.backward.program.timed if one.direct is not None]
    assert sums[0].past
    assert {"input_call_past", "input_x"} <= {node.name for node in sums[1]}
    assert "sums over rows that have not ended" in net.explain(x, lengths=lengths)
    agrees_with_the_plain_loop(net, x, lengths=lengths)
