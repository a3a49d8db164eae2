"""After a refusal nothing is lost: the same network runs on good input and gives what it gave before."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import leporello as lp
from leporello.errors import LeporelloError
from tests.errors import steps
from tests.nets.twins import quickly

X, Y = torch.randn(5, 2, 3), torch.randn(5, 2, 4)

BAD_CALLS: dict[str, Callable[[lp.Recurrent], Any]] = {
    "features": lambda net: net(torch.ones(5, 2, 7)),
    "axes": lambda net: net(torch.ones(5)),
    "dtype": lambda net: net(X.double()),
    "no tensor": lambda net: net("x"),
    "no steps": lambda net: net(X[:0]),
    "empty batch": lambda net: net(X[:, :0]),
    "steps": lambda net: net(X, steps=4),
    "lengths": lambda net: net(X, lengths=[1, 9]),
    "resets": lambda net: net(X, resets=torch.zeros(5, 2)),
    "targets": lambda net: net(X, targets=Y[:2]),
    "forcing": lambda net: net(X, targets=Y, forcing=2),
    "state": lambda net: net(X, torch.zeros(2, 9)),
    "draws": lambda net: net(X, draws=[X]),
    "device": lambda net: net(X.to("meta")),
    "one step": lambda net: net.step(X),
    "fold": lambda net: lp.fold(net, X[0]),
    "the cell": lambda net: net.cell(X),
}


def fresh() -> lp.Recurrent:
    torch.manual_seed(1)
    return lp.Recurrent(lp.Jordan(3, 6, 4))


@functools.cache
def used() -> tuple[lp.Recurrent, torch.Tensor]:
    """A network that has run, and what it gave."""
    net = fresh()
    return net, net(X)[0].detach()


ALIKE = ("axes", "no tensor", "no steps", "empty batch", "steps", "resets", "forcing")  # refused where others are
CASES = [
    pytest.param(traced, name, marks=pytest.mark.slow if not traced and name in ALIKE else [])
    for traced in (False, True)
    for name in BAD_CALLS
]


@pytest.mark.parametrize(("traced", "name"), CASES, ids=lambda value: {False: "first", True: "later"}.get(value, value))
def test_a_network_runs_as_before_after_a_refused_call(traced: bool, name: str) -> None:
    later, wanted = used()
    net = later if traced else fresh()
    with pytest.raises(LeporelloError):
        BAD_CALLS[name](net)
    outputs, state = net(X)
    assert torch.equal(outputs, wanted)
    net.zero_grad()
    (outputs.sum() + state.sum()).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert net(X, targets=Y, resets=torch.zeros(5, 2, dtype=torch.bool), lengths=[3, 5])[0].shape == (5, 2, 4)


class Switched(steps.Good):
    """A step with a flaw that can be repaired."""

    def __init__(self, flaw: type[steps.Good] | None) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(steps.HIDDEN))
        self.calls, self.seen = 0, []
        self.flaw = flaw

    def end(self, x: Any, h: Any) -> Any:
        return (self.flaw or steps.Good).end(self, x, h)


FLAWS = [
    steps.If,
    steps.Item,
    steps.MaskIndex,
    steps.Numpy,
    steps.Global,
    steps.Exchanges,
    steps.Detached,
    steps.Shrinks,
    steps.Remembers,
    steps.Counts,
    steps.Appends,
    steps.FailingFunction,
    steps.NoiseOnItsSide,
    steps.OneResult,
    steps.Grows,
    steps.Pairs,
    steps.OutputFlat,
    steps.Mistaken,
]


@functools.cache
def unflawed() -> tuple[Switched, torch.Tensor]:
    """A cell that has never run, and what a copy of it gives."""
    cell = Switched(None)
    return cell, lp.Recurrent(copy.deepcopy(cell))(X)[0].detach()


QUICK = (steps.If, steps.MaskIndex, steps.Shrinks, steps.Pairs, steps.FailingFunction, steps.OneResult)


@pytest.mark.parametrize("flaw", quickly(FLAWS, *QUICK))
def test_a_cell_runs_as_it_would_have_after_its_step_is_repaired(flaw: type[steps.Good]) -> None:
    made, wanted = unflawed()
    cell = copy.deepcopy(made)
    net = lp.Recurrent(cell)
    cell.flaw = flaw
    for _ in range(2):
        with pytest.raises(LeporelloError):
            net(X)
    cell.flaw = None
    outputs, _ = net(X)
    assert torch.equal(outputs, wanted)
    outputs.sum().backward()
    assert all(type(value) in (torch.nn.Parameter, torch.Tensor) for value in cell.state_dict(keep_vars=True).values())
    assert cell(X[0])[0].shape == (2, steps.HIDDEN)


def test_a_refusal_draws_no_random_numbers() -> None:
    net = lp.Recurrent(steps.If())
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    with pytest.raises(LeporelloError):
        net(X)
    assert torch.equal(torch.rand(3), wanted)
