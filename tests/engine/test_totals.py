"""Sums over rows and steps inside kernels: gradients of parameters whose values are too wide to be written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu import native
from leporello.kernel import interpreter
from leporello.kernel.dependencies import block_dependencies
from leporello.kernel.description import Apply, Buffer, Kernel, Load, Place, Pointwise, Store
from leporello.kernel.index import loop_variables, row_major
from tests.close import assert_close
from tests.engine.results import Plain, found
from tests.kernel.built import run_built
from tests.nets.twins import agrees_with_the_plain_loop

pytestmark = pytest.mark.kernels


class Synapses(lp.Cell):
    """Each pair of units has parameters of its own, which are used twice in a step."""

    def __init__(self, hidden: int = 23) -> None:
        super().__init__(v=hidden)
        self.inner, self.weight = nn.Linear(3, hidden), nn.Parameter(torch.randn(2, hidden, hidden) / hidden)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weight, middle = self.weight
        for _ in range(2):
            v = 0.5 * v + (weight * torch.tanh(v.unsqueeze(2) - middle)).sum(1) + self.inner(x)
        return v, v


def totals(net: lp.Recurrent) -> list[str]:
    ((plan, _),) = net._plan_cache.plans.values()
    return [b.name for timed in plan.backward.program.timed if timed.kernel for b in timed.kernel.kernel.totals]


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_wide_sums_are_added_up_in_the_kernel(batch: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: threads)
    cell = Synapses().double()
    net, x = lp.Recurrent(cell, engine="cpu"), torch.randn(150, batch, 3, dtype=torch.float64)
    assert_close(found(net, x), found(Plain(cell), x), f"{batch} rows, {threads} threads")
    assert len(totals(net)) == 2, "the uses of a parameter have one total together"


def test_the_total_of_a_call_with_lengths_and_resets_leaves_out_what_does_not_count() -> None:
    x = torch.randn(9, 4, 3, dtype=torch.float64)
    net = lp.Recurrent(Synapses().double(), engine="cpu")
    agrees_with_the_plain_loop(net, x, lengths=[9, 3, 1, 5], resets=torch.rand(9, 4) < 0.3)


def test_gradients_of_a_layer_norm_in_a_step_stay_outside() -> None:
    class Normed(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=(20, 30))
            self.norm, self.scale = nn.LayerNorm(30), nn.Parameter(torch.randn(20, 30))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.norm(h + self.scale) + x.unsqueeze(2))
            return h.sum(2), h

    cell, x = Normed().double(), torch.randn(6, 3, 20, dtype=torch.float64)
    net = lp.Recurrent(cell, engine="cpu")
    assert_close(found(net, x), found(Plain(cell), x), "layer norm")
    assert len(totals(net)) == 1, "that of the scale"


def test_narrow_sums_stay_outside() -> None:
    net = lp.Recurrent(Synapses(5), engine="cpu")
    net(torch.randn(4, 2, 3))[0].sum().backward()
    assert totals(net) == []


@pytest.mark.parametrize("pooled", [False, True])
def test_gradients_have_the_same_bits_from_run_to_run(pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On threads of our own too, where whoever is running takes the next rows."""
    monkeypatch.setattr("leporello.engine.cpu.native.thread_count", lambda _: 2)
    cell, x = Synapses(), torch.randn(20, 16, 3)
    net = lp.Recurrent(cell, engine="cpu")
    once = found(net, x)
    if pooled:
        monkeypatch.setattr(native, "_torch_threads", lambda: native.NO_OPENMP)
    for _ in range(3):
        again = found(net, x)
        assert all(torch.equal(value, again[name]) for name, value in once.items())


def test_a_total_is_what_the_interpreter_adds_up() -> None:
    kind, sizes = torch.float64, (3, 5)
    read, total = (Buffer(name, place, 0, sizes, kind, kind) for name, place in (("x", "read"), ("sum", "total")))
    indices = loop_variables(sizes)
    at = row_major(indices, sizes)
    value = Load(read, at)
    blocks = (Pointwise(sizes, (Store(total, at, Apply("mul", (value, value), kind)),)),)
    places: tuple[Place, ...] = ("state", "next", "read", "write", "row", "fixed", "scratch", "total")
    buffers = {place: tuple(own for own in (read, total) if own.place == place) for place in places}
    kernel = Kernel("squares", False, blocks, buffers, (), kind, block_dependencies(blocks))
    x = torch.randn(70, 4, *sizes, dtype=kind)
    given = {"states": [], "reads": [x], "rows": [], "fixed": [], "steps": 70, "batch": 4}
    for _, (made,) in (interpreter.run(kernel, **given), run_built("cpu", kernel, **given)):  # type: ignore[arg-type]
        assert torch.allclose(made, x.square().sum((0, 1)), rtol=0, atol=1e-11)
    assert "total" in kernel.text()
