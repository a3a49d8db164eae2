"""Cached calls: a call with a signature seen before plans nothing, and sees every change that a fresh net would see."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.call.plan_cache import PlanCache
from leporello.engine import reference
from leporello.loop.state import leaves_of
from leporello.nets.plain_loop import plain_loop
from tests.nets.twins import ENGINES, close, gradients, normal, shaken, somewhere, state_like


class Reads(lp.Cell):
    """A step that reads all kinds of attributes."""

    def __init__(self, learned: bool = False) -> None:
        super().__init__(h=4, learned=learned)
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))
        self.number, self.word = 0.7, "tanh"
        self.table: dict[str, Any] = {"scale": 1.5}
        self.nested: dict[str, Any] = {"inner": [1.0, {"deep": 0.5}]}
        self.numbers = [0.3, -0.2]
        self.fields = SimpleNamespace(slope=0.1)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a = self.number * self.U(x) + self.table["scale"] * self.W(h) + self.numbers[1]
        a = a * self.nested["inner"][1]["deep"] + self.fields.slope * h + self.shift
        h = (torch.tanh(a) if self.word == "tanh" else torch.relu(a)) * (1.0 if self.training else 0.5)
        return h * self.gain, h


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Callable[[lp.Recurrent], int]:
    """How often a net has planned."""
    planners: list[PlanCache] = []
    real = PlanCache.plan

    def plan(self: PlanCache, *arguments: Any) -> Any:
        planners.append(self)
        return real(self, *arguments)

    monkeypatch.setattr(PlanCache, "plan", plan)
    return lambda net: sum(planner is net._plan_cache for planner in planners)


def results(run: Callable[..., Any], net: lp.Recurrent, *arguments: Any, **options: Any) -> list[Any]:
    """Outputs and final state, and the gradients where there are some."""
    found = run(*arguments, **options)
    sources = [leaf for leaf in leaves_of((arguments, options)) if isinstance(leaf, Tensor) and leaf.requires_grad]
    sources += [parameter for parameter in net.parameters() if parameter.requires_grad]
    trained = any(leaf.requires_grad for leaf in leaves_of(found))
    return [found, gradients(found, sources) if trained else None]


def right(net: lp.Recurrent, *arguments: Any, tolerance: float = 1e-10, **options: Any) -> None:
    """The net gives what the plain loop gives, which remembers nothing."""

    def plainly(inputs: Tensor, state: Any = None, **options: Any) -> Any:
        return plain_loop(net.cell, checked_call(net.cell, inputs, state, **options))

    close(results(net, net, *arguments, **options), results(plainly, net, *arguments, **options), tolerance)


def right_as_a_fresh_one(net: lp.Recurrent, *arguments: Any, **options: Any) -> list[Any]:
    """The net gives what a fresh one gives that runs step by step; what that is."""
    fresh = lp.Recurrent(net.cell, engine="reference", gradient=net.gradient, batch_first=net.batch_first)
    wanted = results(fresh, net, *arguments, **options)
    close(results(net, net, *arguments, **options), wanted)
    return wanted


ARGUMENTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "inputs alone": (lambda net: None, {}),
    "a state": (lambda net: state_like(net, 2), {}),
    "lengths": (lambda net: None, {"lengths": torch.tensor([4, 1])}),
    "resets": (lambda net: None, {"resets": somewhere(4, 2)}),
    "all of them": (lambda net: state_like(net, 2), {"lengths": torch.tensor([2, 4]), "resets": somewhere(4, 2)}),
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_the_second_call_of_a_signature_does_not_plan(arguments: str, plans: Any) -> None:
    net = lp.Recurrent(shaken(lp.LSTM(3, 4, learned=True)), engine="stepwise")
    state, options = ARGUMENTS[arguments]
    for seed in (1, 2, 3):
        right(net, normal(4, 2, 3, seed=seed, grad=True), state(net), **options)
    assert plans(net) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_another_length_or_batch_has_the_same_signature(engine: str, plans: Any) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), engine=engine)
    for length, batch in ((4, 2), (1, 1), (7, 3)):
        right(net, normal(length, batch, 3))
    assert plans(net) == 1


def test_calls_with_the_batch_first_and_single_steps_plan_once_each(plans: Any) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), batch_first=True)
    resets = somewhere(4, 2)
    for seed in (1, 2):
        right_as_a_fresh_one(net, normal(2, 4, 3, seed=seed), resets=resets.T)
    assert plans(net) == 1
    for seed in (1, 2, 3):
        x, state = normal(2, 3, seed=seed), state_like(net, 2)
        close(net.step(x, state), net.cell(x, state))
    assert plans(net) == 2


def test_updates_of_an_optimiser_take_effect_and_do_not_plan(plans: Any) -> None:
    net = lp.Recurrent(shaken(Reads(learned=True)))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.1)
    x, found = normal(4, 2, 3), []
    for _ in range(4):
        right(net, x)
        outputs, _ = net(x)
        found.append(outputs.detach())
        optimiser.zero_grad()
        outputs.square().sum().backward()
        optimiser.step()
    assert plans(net) == 1
    assert not any(torch.allclose(one, other) for one, other in pairwise(found))


def _parametrized(net: lp.Recurrent) -> None:
    parametrize.register_parametrization(net.cell.W, "weight", nn.Tanh())


CHANGES: dict[str, Callable[[lp.Recurrent], Any]] = {
    "a parameter is replaced": lambda net: setattr(net.cell, "gain", nn.Parameter(normal(4, seed=5))),
    "a parameter of a part is replaced": lambda net: setattr(net.cell.W, "weight", nn.Parameter(normal(4, 4, seed=5))),
    "a parameter goes": lambda net: setattr(net.cell.U, "bias", None),
    "a parameter gets other data": lambda net: setattr(net.cell.gain, "data", normal(4, seed=5)),
    "a parameter gets data of another dtype": lambda net: setattr(net.cell.gain, "data", torch.full((4,), 0.5)),
    "a parameter is frozen": lambda net: net.cell.W.weight.requires_grad_(False),
    "a parameter is tied": lambda net: setattr(net.cell.U, "bias", net.cell.W.bias),
    "a parameter is parametrized": _parametrized,
    "a buffer is replaced": lambda net: setattr(net.cell, "shift", normal(4, seed=6)),
    "a buffer is written to": lambda net: net.cell.shift.add_(0.3),
    "a part is replaced": lambda net: setattr(net.cell, "W", nn.Sequential(shaken(nn.Linear(4, 4), seed=7), nn.Tanh())),
    "a number changes": lambda net: setattr(net.cell, "number", -0.4),
    "a word changes": lambda net: setattr(net.cell, "word", "relu"),
    "an item of a dict changes": lambda net: net.cell.table.update(scale=-0.5),
    "a dict is replaced": lambda net: setattr(net.cell, "table", {"scale": -0.5}),
    "an item of a list changes": lambda net: net.cell.numbers.__setitem__(1, 0.6),
    "an item deep inside changes": lambda net: net.cell.nested["inner"][1].update(deep=-0.8),
    "a field changes": lambda net: setattr(net.cell.fields, "slope", -0.6),
    "the mode changes": lambda net: net.eval(),
    "the step is replaced": lambda net: setattr(net.cell, "forward", lambda x, h: (h - net.cell.U(x), h * 0.5)),
}
UNPLANNED = {"a parameter gets other data", "a buffer is written to"}  # what a plan reads anew at each call
WITHOUT_EFFECT = {"a parameter is frozen"}  # on values


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_cell_is_seen(change: str, plans: Any) -> None:
    net, x = lp.Recurrent(shaken(Reads()), engine="stepwise"), normal(4, 2, 3)
    tolerance = 1e-5 if "another dtype" in change else 1e-10
    with torch.set_grad_enabled("parameter" in change):  # gradients take time
        before, _ = net(x)
        CHANGES[change](net)
        for _ in range(2):
            right(net, x, tolerance=tolerance)
        assert plans(net) == (1 if change in UNPLANNED else 2)
        after, _ = net(x)
    assert torch.allclose(before, after.double()) == (change in WITHOUT_EFFECT)


def test_a_change_back_and_forth_is_seen_each_time(plans: Any) -> None:
    net, x = lp.Recurrent(shaken(Reads()), engine="stepwise"), normal(4, 2, 3)
    with torch.no_grad():
        for net.cell.number in (0.7, 0.2, 0.7, 0.2):
            right(net, x)
            right(net, x)
    assert plans(net) == 4


def test_a_net_in_another_dtype_is_right() -> None:
    net = lp.Recurrent(shaken(Reads()), engine="stepwise")
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.float64, 1e-10)):
        net.to(dtype)
        for _ in range(2):
            right(net, normal(4, 2, 3, dtype=dtype), tolerance=tolerance)


def test_a_hook_is_refused_after_a_cached_call_as_before_one_and_can_go_again() -> None:
    net, x = lp.Recurrent(shaken(Reads())), normal(4, 2, 3)
    wanted = net(x)
    hook = net.cell.W.register_forward_hook(lambda module, given, made: 2 * made)
    with pytest.raises(lp.errors.LeporelloError) as refusal:
        net(x)
    with pytest.raises(type(refusal.value)) as fresh:
        lp.Recurrent(net.cell)(x)
    assert str(refusal.value) == str(fresh.value)
    hook.remove()
    close(net(x), wanted, tolerance=0)


class Dropped(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.dropout(h) + x)
        return h, h


def test_dropout_draws_anew_while_training_and_never_in_eval() -> None:
    net, x = lp.Recurrent(Dropped(), engine="stepwise"), normal(6, 5, 3)
    for _ in range(2):
        net.train()
        assert not torch.equal(net(x)[0], net(x)[0])
        net.eval()
        right(net, x)
        close(net(x), net(x), tolerance=0)


@pytest.mark.parametrize("grad", [True, False])
def test_the_first_call_draws_the_numbers_that_the_next_ones_draw(grad: bool) -> None:
    net, x = lp.Recurrent(Dropped(), engine="stepwise"), normal(6, 5, 3, grad=grad)
    found = []
    for _ in range(3):
        torch.manual_seed(4)
        found.append((net(x), torch.rand(2)))
    for again in found[1:]:
        close(again, found[0], tolerance=0)


def test_gradients_on_and_off_are_two_signatures(plans: Any) -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4))), normal(4, 2, 3)
    for _ in range(3):
        right(net, x)
        with torch.no_grad():
            right(net, x)
            assert not net(x)[0].requires_grad
        with torch.inference_mode():
            right(net, x)
    assert net(x)[0].requires_grad
    assert plans(net) == 2


def test_an_input_or_a_state_that_wants_gradients_has_a_signature_of_its_own(plans: Any) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    for _ in range(2):
        for inputs in (False, True):
            for state in (False, True):
                right(net, normal(4, 2, 3, grad=inputs), state_like(net, 2, grad=state))
    assert plans(net) == 4


def test_autocast_has_a_signature_of_its_own(plans: Any) -> None:
    net, x = lp.Recurrent(lp.GRU(3, 4), engine="stepwise"), normal(4, 2, 3, dtype=torch.float32)
    found = []
    for _ in range(2):
        right(net, x, tolerance=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            right(net, x, tolerance=0.1)
            found.append(net(x)[0].detach().float())
        assert not torch.equal(found[-1], net(x)[0])
    assert torch.equal(*found)
    assert plans(net) == 2


def test_another_engine_runs_the_call(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = [], reference.run
    monkeypatch.setattr(reference, "run", lambda *arguments: runs.append(arguments) or run(*arguments))
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4))), normal(4, 2, 3)
    for net.engine in ("stepwise", "reference", "stepwise", "reference"):
        before = len(runs)
        right(net, x)
        assert len(runs) - before == (net.engine == "reference")
    assert plans(net) == 2


def test_another_gradient_method_is_seen(plans: Any) -> None:
    net, x = lp.Recurrent(shaken(lp.RNN(3, 4))), normal(6, 2, 3)
    found = {}
    for _ in range(2):
        for net.gradient in (lp.Full(), lp.Truncated(2)):
            found[str(net.gradient)] = right_as_a_fresh_one(net, x)[1][0]
    assert plans(net) == 2
    assert not torch.allclose(*found.values())


WRONG: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Tensor]]] = {  # inputs, state, options
    "a state of another batch": ((4, 3, 3), (2, 4), {}),
    "other features": ((4, 2, 5), (2, 4), {}),
    "a state of another size": ((4, 2, 3), (2, 5), {}),
    "no step": ((0, 2, 3), (2, 4), {}),
    "no row": ((4, 0, 3), (0, 4), {}),
    "a length past the end": ((4, 2, 3), (2, 4), {"lengths": torch.tensor([4, 5])}),
    "lengths that are no integers": ((4, 2, 3), (2, 4), {"lengths": torch.tensor([4.0, 1.0])}),
    "resets of another batch": ((4, 2, 3), (2, 4), {"resets": torch.zeros(4, 3, dtype=torch.bool)}),
}


@torch.no_grad()
def test_what_is_wrong_is_said_as_a_fresh_net_says_it(plans: Any) -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4))), normal(4, 2, 3)
    for given in ({}, {"lengths": torch.tensor([4, 1])}, {"resets": somewhere(4, 2)}):
        net(x, normal(2, 4), **given)
    for name, (inputs, state, options) in WRONG.items():
        said = []
        for one in (net, lp.Recurrent(net.cell)):
            with pytest.raises(lp.errors.LeporelloError) as error:
                one(normal(*inputs), normal(*state), **options)
            said.append(str(error.value))
        assert said[0] == said[1], name
    before = plans(net)
    right(net, x, normal(2, 4))
    assert plans(net) == before


def test_lengths_and_resets_may_come_and_go(plans: Any) -> None:
    net, x = lp.Recurrent(shaken(lp.LSTM(3, 4))), normal(4, 2, 3)
    with torch.no_grad():
        for seed in (1, 2, 3):
            right(net, x)
            right(net, x, lengths=torch.randint(1, 5, (2,)))
            right(net, x, resets=somewhere(4, 2, seed=seed))
            right(net, x, lengths=[4, seed], resets=somewhere(4, 2, seed=seed))
    assert plans(net) == 4


def test_a_cached_call_takes_random_numbers_in_the_order_of_the_first_one():
    net = lp.Recurrent(lp.Stack(lp.RNN(3, 4), lp.RNN(4, 4), dropout=0.5), gradient=lp.RandomTruncated(0.6)).double()
    found = []
    for _ in range(3):  # the first one, then cached ones
        torch.manual_seed(4)
        net.zero_grad()
        net(normal(5, 2, 3))[0].sum().backward()
        found.append([parameter.grad.clone() for parameter in net.parameters()])
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))


def test_another_cell_is_seen(plans: Any) -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4))), normal(4, 2, 3)
    for cell in (net.cell, shaken(lp.GRU(3, 4), seed=7), shaken(lp.RNN(3, 4))):
        net.cell = cell
        for _ in range(2):
            right(net, x)
    assert plans(net) == 3


def test_a_call_with_a_nested_state_is_cached_too(plans: Any) -> None:
    net = lp.Recurrent(shaken(lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 4))))
    for seed in (1, 2, 3):
        right(net, normal(4, 2, 3, seed=seed), state_like(net, 2, grad=True))
    assert plans(net) == 1


def test_an_attribute_called_call_is_the_cells_own() -> None:
    class Caller(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.call = nn.Linear(3 + 4, 4)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.call(torch.cat([x, h], -1)))
            return h, h

    net = lp.Recurrent(shaken(Caller()))
    for seed in (1, 2):
        right(net, normal(4, 2, 3, seed=seed), lengths=torch.tensor([4, 2]))
