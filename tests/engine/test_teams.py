"""Kernels with few rows for each thread: all of them take the same rows, and columns of each product."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu import native, runner
from leporello.loop.state import leaves_of
from tests.close import assert_close, assert_same
from tests.engine.counting import Shares
from tests.engine.results import Plain, found

pytestmark = pytest.mark.kernels


class Gated(lp.Cell):
    """h' = (h A) sigmoid(h B) + tanh(h C D) + x; A and B are one matrix, C and D are too small to be shared."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(h=size)
        self.size = size
        numbers = torch.Generator().manual_seed(1)
        sizes = {"AB": (size, 2 * size), "C": (size, 3), "D": (3, size)}
        for name, (inner, outer) in sizes.items():
            values = torch.randn(inner, outer, generator=numbers, dtype=torch.float64) / inner**0.5
            setattr(self, name, nn.Parameter(values.to(dtype)))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(F.glu(h @ self.AB, -1) + torch.tanh(h @ self.C @ self.D) + x)
        return h, h


def inputs(length: int, batch: int, features: int, dtype: torch.dtype = torch.float32) -> Tensor:
    numbers = torch.Generator().manual_seed(2)
    return torch.randn(length, batch, features, generator=numbers, dtype=torch.float64).to(dtype)


def values(net: lp.Recurrent, x: Tensor) -> dict[str, Tensor]:
    """Outputs and final state, with and without gradients to come."""
    results = {}
    for name, grad in (("with gradients", True), ("without", False)):
        with torch.set_grad_enabled(grad):
            outputs, state = net(x)
        leaves = enumerate([outputs, *leaves_of(state)])
        results.update({f"{name} {number}": leaf.detach() for number, leaf in leaves})
    return results


CASES = {  # cells, their features, and how many products a step has
    "LSTM": (lambda: lp.Feedback(lp.LSTM(128, 128)), 0, 2),
    "gated": (lambda: Gated(129), 129, 3),
    "gated float64": (lambda: Gated(131, torch.float64), 131, 3),
}


@cache
def net_of(name: str) -> lp.Recurrent:
    return lp.Recurrent(CASES[name][0](), engine="cpu")


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_states_are_the_same_bits_in_a_team_and_alone(name: str, shares: Shares) -> None:
    _, features, products = CASES[name]
    net, dtype = net_of(name), next(net_of(name).parameters()).dtype
    for length, batch in ((9, 1), (5, 2), (1, 1), (1, 2)):
        x = inputs(length, batch, features, dtype)
        torch.set_num_threads(1)
        alone = values(net, x)
        assert not shares.since()
        torch.set_num_threads(3)
        together = values(net, x)
        assert_same(together, alone, f"{length} steps, batch {batch}")
        first, *others = shares.since()
        assert others == [first] * 2
        assert first >= 2 * length * products  # two calls, and what is multiplied ahead
        assert_same(values(net, x), together, "run to run")
        shares.since()


def test_our_own_threads_form_no_team_and_give_the_same_bits(shares: Shares, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = lp.Recurrent(Gated(129), engine="cpu"), inputs(9, 1, 129)
    torch.set_num_threads(3)
    wanted = values(net, x)
    shares.since()
    monkeypatch.setattr(native, "_torch_threads", lambda: native.NO_OPENMP)
    for threads in (3, 5, 2):
        torch.set_num_threads(threads)
        assert_same(values(net, x), wanted, f"{threads} threads")
        assert not shares.since()


@pytest.mark.parametrize("name", CASES)
def test_gradients_by_a_team_are_those_of_torch_and_the_same_bits_from_run_to_run(name: str, shares: Shares) -> None:
    _, features, products = CASES[name]
    net, dtype = net_of(name), next(net_of(name).parameters()).dtype
    torch.set_num_threads(3)
    for length, batch in ((9, 1), (7, 2), (1, 1)):
        x = inputs(length, batch, features, dtype)
        first = found(net, x)
        forward_and_backward = shares.since()
        assert_same(found(net, x), first, f"{length} steps, batch {batch}: run to run")
        assert shares.since() == forward_and_backward
        with torch.no_grad():
            net(x)
        least, *others = shares.since()
        assert others == [least] * 2
        assert least >= length * products
        assert len(forward_and_backward) == 3
        assert all(number >= 2 * length * products for number in forward_and_backward)
        assert_close(first, found(Plain(net.cell), x), f"{length} steps, batch {batch}")


@pytest.mark.parametrize(("size", "large"), [(127, False), (128, True)])
def test_a_matrix_is_shared_from_a_size_on(size: int, large: bool, shares: Shares) -> None:
    assert (size * 2 * size >= runner.SHARED_COLUMNS[0][0]) == large
    cell, x = Gated(size), inputs(9, 1, size)
    net = lp.Recurrent(cell, engine="cpu")
    torch.set_num_threads(3)
    assert_close(found(net, x), found(Plain(cell), x), f"size {size}")
    assert bool(shares.since()) == large


def test_where_every_thread_has_rows_enough_each_has_its_own(shares: Shares) -> None:
    cell, x = Gated(128), inputs(9, 3, 128)
    net = lp.Recurrent(cell, engine="cpu")
    torch.set_num_threads(3)
    assert_close(found(net, x), found(Plain(cell), x), "rows")
    assert not shares.since()


def test_a_matrix_too_large_for_the_cache_is_divided_though_there_are_rows(
    shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than are taken together, too."""
    monkeypatch.setattr(runner, "SHARED_COLUMNS", ((1 << 12, 100),))
    cell = Gated(67)
    net = lp.Recurrent(cell, engine="cpu")
    for batch in (5, 71, 150):
        x = inputs(6, batch, 67)
        torch.set_num_threads(1)
        alone = values(net, x)
        assert not shares.since()
        torch.set_num_threads(3)
        assert_same(values(net, x), alone, f"batch {batch}")
        assert len(shares.since()) == 3
        assert_close(found(net, x), found(Plain(cell), x), f"batch {batch}")
        shares.since()


def test_one_step_of_many_rows_is_shared_too(shares: Shares) -> None:
    cell, x = Gated(128), inputs(1, 9, 128)
    net = lp.Recurrent(cell, engine="cpu")
    torch.set_num_threads(1)
    alone = values(net, x)
    torch.set_num_threads(11)
    assert_same(values(net, x), alone, "one step")
    assert len(shares.since()) == 11
