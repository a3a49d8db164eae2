"""What changes between calls takes effect; what does not matter never traces again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.call import plan_cache
from tests.nets.twins import (
    STEPWISE,
    agrees_with_the_plain_loop,
    close,
    crossed,
    normal,
    shaken,
    somewhere,
    state_like,
)

MADE = {"GRU": lambda: lp.GRU(3, 4), "a stack": lambda: lp.Stack(lp.LSTM(3, 4), lp.TimeDelay(4, 2, 3))}


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Grows by one with every trace."""
    found, trace = [], plan_cache.trace

    def counted(*args: object, **options: object) -> object:
        found.append(args[0])
        return trace(*args, **options)

    monkeypatch.setattr(plan_cache, "trace", counted)
    return found


@pytest.mark.parametrize(("name", "engine"), crossed(MADE, cpu=["GRU"], stepwise=["a stack"]))
def test_another_length_or_batch_never_traces_again(name: str, engine: str, traces: list) -> None:
    net = lp.Recurrent(shaken(MADE[name]()), engine=engine)
    sizes = [(5, 3), (1, 1), (2, 1), (1, 4), (7, 2), (63, 5)]
    for length, batch in sizes:
        agrees_with_the_plain_loop(net, normal(length, batch, 3), state_like(net, batch))
    assert len(traces) == 1
    for length, batch in sizes:
        net(normal(length, batch, 3), lengths=[1] * batch, resets=somewhere(length, batch))
        net.step(normal(batch, 3))
    assert len(traces) == 1


def test_a_first_call_with_one_row_serves_all(traces: list) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    for batch in (1, 3, 2, 1):
        agrees_with_the_plain_loop(net, normal(4, batch, 3))
    assert len(traces) == 1


def test_train_and_eval_are_traced_once_each(traces: list) -> None:
    net = lp.Recurrent(shaken(lp.ZoneoutLSTM(3, 4, zoneout_h=0.5)))
    x = normal(4, 2, 3)
    with torch.no_grad():
        first = net.eval()(x)
        assert not torch.equal(net.train()(x)[0], first[0])
        assert not torch.equal(net(x)[0], net(x)[0])
        close(net.eval()(x), first, tolerance=0)
        net.train()(x)
    assert len(traces) == 2


def test_parameters_changed_in_place_take_effect_without_a_trace(traces: list) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    x = normal(4, 2, 3)
    before = net(x)[0]
    with torch.no_grad():
        net.cell.W.mul_(0.5)
    assert not torch.equal(net(x)[0], before)
    agrees_with_the_plain_loop(net, x)
    assert len(traces) == 1


def test_parameters_replaced_take_effect(traces: list) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    x = normal(4, 2, 3)
    net(x)
    net.cell.W = nn.Parameter(normal(12, 4, seed=3))
    agrees_with_the_plain_loop(net, x)
    assert len(traces) == 1
    net.cell.W.data = normal(12, 4, seed=4)
    agrees_with_the_plain_loop(net, x)
    net.cell.b = None
    agrees_with_the_plain_loop(net, x)
    assert len(traces) == 2


def test_the_bias_that_is_left_out_is_the_right_one() -> None:
    """b and c have one shape, so that only their names tell which of them is there."""
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    b, c = net.cell.b, net.cell.c
    for net.cell.b, net.cell.c in ((None, c), (b, None), (None, c)):
        agrees_with_the_plain_loop(net, normal(4, 2, 3))


@pytest.mark.parametrize("engine", STEPWISE)
def test_parameters_tied_and_untied_between_calls_take_effect(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.Stack(lp.RNN(3, 3), lp.RNN(3, 3))), engine=engine)
    x, (one, two) = normal(4, 2, 3), net.cell.cells
    own = two.W
    for two.W in (one.W, own, one.W):
        agrees_with_the_plain_loop(net, x)


def test_cells_exchanged_in_a_stack_take_effect() -> None:
    one, two = lp.RNN(3, 3), lp.RNN(3, 3)
    stack = shaken(lp.Stack(one, two, one))
    net = lp.Recurrent(stack)
    for stack.cells[2] in (one, two, one):
        agrees_with_the_plain_loop(net, normal(4, 2, 3))


def test_another_cell_in_the_net_takes_effect() -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4), seed=1))
    net(normal(4, 2, 3))
    for seed in (2, 3):
        net.cell = shaken(lp.GRU(3, 4), seed=seed)
        agrees_with_the_plain_loop(net, normal(4, 2, 3))


def test_plans_that_are_never_used_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_ENTRIES", 3)
    net = lp.Recurrent(shaken(lp.Leaky(3, 4, 2, alpha=0.2)))
    with torch.no_grad():
        for alpha in (0.1, 0.2, 0.3, 0.4, 0.5):
            net.cell.fixed_alpha = alpha
            net(normal(2, 1, 3))
    assert len(net._plan_cache.loops) == len(net._plan_cache.plans) == 3
    net.cell.fixed_alpha = 0.1
    agrees_with_the_plain_loop(net, normal(2, 1, 3))


def test_attributes_changed_between_calls_take_effect(traces: list) -> None:
    net = lp.Recurrent(shaken(lp.Leaky(3, 4, 2, alpha=0.2)))
    x = normal(4, 2, 3)
    for alpha in (0.2, 0.5, 1.0, 0.2):
        net.cell.fixed_alpha = alpha
        agrees_with_the_plain_loop(net, x)
    assert len(traces) == 3
    net.cell.nonlinearity = "relu"
    agrees_with_the_plain_loop(net, x)
    assert len(traces) == 4


def test_attributes_of_parts_changed_between_calls_take_effect() -> None:
    net = lp.Recurrent(shaken(lp.record(lp.Stack(lp.Leaky(3, 4, 2, alpha=0.2), lp.RNN(2, 3)))))
    x = normal(4, 2, 3)
    before = net(x)[0][0]
    net.cell.cell.cells[0].fixed_alpha = 0.9
    assert not torch.equal(net(x)[0][0], before)
    agrees_with_the_plain_loop(net, x)


class Outer(nn.Module):
    """A model whose method is a step."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.gain = nn.Dropout(0.5), 2.0

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.gain * self.drop(x + h)
        return h, h


class InAList(nn.Module):
    def __init__(self, outer: Outer) -> None:
        super().__init__()
        self.parts = [outer]

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.parts[0].step(x, h)


@pytest.mark.parametrize("kind", ["method", "closure", "list"])
def test_modules_elsewhere_have_their_own_mode(kind: str, traces: list) -> None:
    outer, x, h = Outer(), normal(4, 2, 3), normal(2, 3, seed=2)
    step = {"method": outer.step, "closure": lambda x, h: outer.step(x, 1.0 * h), "list": InAList(outer)}[kind]
    net = lp.Recurrent(step, engine="stepwise")
    assert not torch.equal(net(x, h)[0], net(x, h)[0])
    outer.eval()
    close(net(x, h)[0][0], 2 * (x[0] + h))
    assert not net.draw(x, h)
    outer.train()
    net(x, h)
    assert len(traces) == 2


GAIN = 2.0


def test_numbers_that_a_step_names_are_read_anew(monkeypatch: pytest.MonkeyPatch, traces: list) -> None:
    outer, shift, x, h = Outer().eval(), 1.0, normal(4, 2, 3), normal(2, 3, seed=2)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return GAIN * x + shift, h

    net, method = lp.Recurrent(step, engine="stepwise"), lp.Recurrent(outer.step, engine="stepwise")
    close(net(x, h)[0], 2 * x + 1)
    shift = 3.0
    close(net(x, h)[0], 2 * x + 3)
    monkeypatch.setitem(globals(), "GAIN", 5.0)
    close(net(x, h)[0], 5 * x + 3)
    close(net(x, h)[0], 5 * x + 3)
    assert len(traces) == 3
    close(method(x, h)[0][0], 2 * (x[0] + h))
    outer.gain = 4.0
    close(method(x, h)[0][0], 4 * (x[0] + h))


def test_a_step_as_an_attribute_can_be_exchanged() -> None:
    """Not even an object made where the last one lay passes for it."""

    class Applies(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=1)
            self.function: Callable[[Tensor], Tensor] = torch.tanh

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.function(h) + x
            return h, h

    net, x = lp.Recurrent(Applies()), torch.ones(3, 1, 1)
    with torch.no_grad():
        for factor in range(5):
            net.cell.function = lambda h, factor=factor: factor * h
            gc.collect()
            assert net(x)[0][-1].item() == 1 + factor + factor**2


def test_buffers_changed_take_effect_without_a_trace(traces: list) -> None:
    net = lp.Recurrent(shaken(lp.Leaky(3, 4, 2, alpha=[0.1, 0.2, 0.3, 0.4])))
    x = normal(4, 2, 3)
    for _ in range(3):
        agrees_with_the_plain_loop(net, x)
        net.cell.fixed_alpha.mul_(1.5)
    assert len(traces) == 1


def test_the_engine_can_be_changed_between_calls() -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    x = normal(4, 2, 3)
    wanted = net(x)
    for net.engine in ("reference", "stepwise"):
        close(net(x), wanted)
        assert net.engine in net.explain(x)


def test_features_and_structure_are_traced_when_they_change(traces: list) -> None:
    def step(x: object, h: Tensor) -> tuple[Tensor, Tensor]:
        total = sum(leaf.sum(-1, keepdim=True) for leaf in torch.utils._pytree.tree_leaves(x))
        return total + h, h + 1

    net = lp.Recurrent(step)
    with torch.no_grad():
        for x in (normal(3, 2, 4), normal(3, 2, 5), (normal(3, 2, 4), normal(3, 2, 1)), {"a": normal(3, 2, 4)}):
            outputs, _ = net(x, normal(2, 1))
            wanted = sum(leaf.sum(-1, keepdim=True) for leaf in torch.utils._pytree.tree_leaves(x))
            close(outputs, wanted + normal(2, 1) + torch.arange(3).reshape(3, 1, 1))
    assert len(traces) == 4


@pytest.mark.parametrize("engine", ["stepwise", "reference"])
def test_what_a_first_call_returns_is_freed_without_a_garbage_collection(engine: str) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine=engine)
    before = gc.isenabled()
    gc.disable()
    try:
        outputs = weakref.ref(net(torch.randn(7, 2, 3))[0])
        assert outputs() is None
    finally:
        if before:
            gc.enable()
