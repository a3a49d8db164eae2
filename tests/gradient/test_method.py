"""What a gradient method is: an object that says how much crosses each step, in a list and row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.engine.state_gradient import Passing
from leporello.errors import ArgumentError
from leporello.gradient import Method
from leporello.loop.loop import Loop
from leporello.nets.plain_loop import plain_loop
from leporello.rewrite import weigh
from tests.errors.said import said
from tests.gradient.by_hand import PAIRS, TOLERANCE, Case, Nets
from tests.nets.twins import STEPWISE, close, gradients, normal, somewhere, state_like

METHODS = [lp.Full(), lp.Truncated(1), lp.Truncated(3), lp.Truncated(100)]


@dataclass(frozen=True)
class EachRow(Method):
    """A method of the tests: every row and step has a weight of its own, the first steps included."""

    seed: int = 0

    def backward(self, loop: Loop) -> Loop:
        return weigh(loop)

    def crossing(self, length: int) -> list[float]:
        return [1.0] * length

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        drawn = 2 * normal(length, batch, seed=self.seed).abs()
        return torch.where(drawn < 1, 0, drawn).to(device, dtype)


def test_truncated_cuts_where_a_window_begins() -> None:
    assert lp.Truncated(3).crossing(7) == [0, 1, 1, 0, 1, 1, 0]
    assert lp.Truncated(1).crossing(3) == [0, 0, 0]
    assert lp.Truncated(100).crossing(3) == [0, 1, 1]
    assert lp.Full().crossing(3) == [1, 1, 1]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_weights_are_the_crossing_in_every_row(method: Any) -> None:
    assert isinstance(method, Method)
    for length, batch in [(1, 1), (7, 3)]:
        weights = method.weights(length, batch, torch.device("cpu"), torch.float32)
        weights = torch.ones(length, batch) if weights is None else weights
        assert weights.dtype == torch.float32
        assert weights.tolist() == [[weight] * batch for weight in method.crossing(length)]


def test_methods_are_compared_by_value() -> None:
    assert lp.Truncated(3) == lp.Truncated(3) != lp.Truncated(4)
    assert len({lp.Truncated(3), lp.Truncated(3), lp.Truncated(4), lp.Full()}) == 3
    assert repr(lp.Truncated(steps=3)) == "Truncated(steps=3)"
    with pytest.raises(AttributeError):
        lp.Truncated(3).steps = 4  # type: ignore[misc]


@pytest.mark.parametrize("steps", [0, -3, 2.0, "3", None, True, (3,)])
def test_what_is_no_number_of_steps_is_refused(steps: Any) -> None:
    said(
        ArgumentError,
        lambda: lp.Truncated(steps),
        "the argument 'steps' is no number of steps.",
        f"came      {steps!r}",
        "expected  a positive integer",
        "try       lp.Truncated(35)",
    )


@pytest.mark.parametrize("gradient", [3, lp.Truncated, torch.zeros(2)], ids=["number", "class", "tensor"])
def test_what_is_no_method_is_refused(gradient: Any) -> None:
    call = "the argument 'gradient' is no gradient method."
    said(ArgumentError, lambda: lp.Recurrent(lp.GRU(3, 4), gradient=gradient), call, "lp.Truncated(35)")


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_every_row_may_have_weights_of_its_own(name: str, engine: str) -> None:
    nets, method = Nets.of(name), EachRow()
    x, state, resets = normal(7, 3, 3, grad=True), state_like(nets.cell, 3), somewhere(7, 3)
    weights = method.weights(7, 3, torch.device("cpu"), torch.float64)
    leaves = list(state) if isinstance(state, tuple) else [state]
    sources = [x, *torch.utils._pytree.tree_leaves(leaves), *nets.cell.parameters()]
    call = checked_call(nets.cell, x, state, resets=resets)
    found, wanted = nets[method, engine](x, state, resets=resets), plain_loop(nets.cell, call, passing=Passing(weights))
    close(gradients(found, sources), gradients(wanted, sources), TOLERANCE, "gradient")


@pytest.mark.parametrize("engine", STEPWISE)
def test_a_net_whose_method_changes_takes_the_new_one(engine: str) -> None:
    case = Case.of(Nets.of("LSTM"), 7, 3)
    net = lp.Recurrent(case.cell, engine=engine)
    for method in (lp.Truncated(3), lp.Truncated(4), lp.Full(), lp.Truncated(3)):
        net.gradient = method
        found = torch.autograd.grad(case.loss(*net(case.inputs)), case.sources)
        close(found, case.by_net(method, engine), tolerance=0)
    assert not torch.equal(case.by_net(lp.Truncated(3), engine)[0], case.by_net(lp.Truncated(4), engine)[0])


def test_full_has_no_weights_in_its_backward_loop() -> None:
    nets, x = Nets.of("LSTM"), normal(7, 3, 3)
    names = {}
    for method in (lp.Full(), lp.Truncated(3)):
        net = lp.Recurrent(nets.cell, gradient=method, engine="stepwise")
        net(x)
        ((plan, _),) = net._plan_cache.plans.values()
        names[method] = [port.name for port in plan.backward.loop.inputs]
    assert "call.weight" in names[lp.Truncated(3)]
    assert [name for name in names[lp.Truncated(3)] if name != "call.weight"] == names[lp.Full()]
