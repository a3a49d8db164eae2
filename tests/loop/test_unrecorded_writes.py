"""Writes that autograd does not record change a value and leave its gradient, as in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import leporello as lp
from tests.nets.twins import normal

Step = Callable[[Tensor, Tensor], Any]


def scores(x: Tensor, h: Tensor) -> Any:
    """As attention decoders mask their scores."""
    e = x * h
    e.data.masked_fill_(x > 0, -1e9)
    h = torch.softmax(e, 1) + 0.1 * h
    return h, h


def without_gradient(x: Tensor, h: Tensor) -> Any:
    e = x * h
    with torch.no_grad():
        e.masked_fill_(x > 0, -1.0)
        e[:, 0] = 0.5
        e.view(-1).mul_(0.5)
        room = torch.zeros_like(e)
        room[:, 1] = x[:, 1]
    h = e.sin() + 0.1 * h + room
    return h, h


def part_of_data(x: Tensor, h: Tensor) -> Any:
    e = x * h
    e.data[:, 1:].mul_(x[:, :2])
    return e.sum(1), e


def detached(x: Tensor, h: Tensor) -> Any:
    e = x * h
    e.detach().mul_(x)
    h = e.sin() + 0.1 * h
    return h, h


def other_data(x: Tensor, h: Tensor) -> Any:
    e = x * h
    e.data = e.data.clamp(-0.1, 0.1)
    h = e.sin() + 0.1 * h
    return h, h


def state_of_its_own(x: Tensor, h: Tensor) -> Any:
    h.data.clamp_(-0.1, 0.1)
    h = (x * h).sin() + 0.1 * h
    F.relu(h.data, inplace=True)
    return h, h


STEPS: list[Step] = [scores, without_gradient, part_of_data, detached, other_data, state_of_its_own]


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_they_mean_what_they_mean_in_a_plain_loop(step: Step, engine: str) -> None:
    net, inputs, state = lp.Recurrent(step, engine=engine), normal(5, 2, 3), normal(2, 3, seed=1)
    report = lp.check_gradients(net, inputs, state, lengths=[5, 3])
    assert report.ok, report
    assert max(report.gradients.values()) < 1e-12


def test_a_detached_value_that_gets_a_gradient_by_a_write_is_refused_where_it_is_read() -> None:
    def step(x: Tensor, h: Tensor) -> Any:
        e = (x * h).detach()
        e[:, 0] = (x * h)[:, 1]
        h = e.sin() + h
        return h, h

    with pytest.raises(lp.errors.UntraceableStep, match="reads a detached value after something") as refusal:
        lp.Recurrent(step)(normal(5, 2, 3), normal(2, 3))
    assert "h = e.sin() + h" in str(refusal.value)
    assert ".detach().clone()" in str(refusal.value)


def test_data_of_another_shape_is_refused() -> None:
    def step(x: Tensor, h: Tensor) -> Any:
        e = x * h
        e.data = e.data[:, :2]
        return e, h

    with pytest.raises(lp.errors.UntraceableStep, match="gives a tensor data of another shape"):
        lp.Recurrent(step)(normal(5, 2, 3), normal(2, 3))
