"""The registered operators are what torch asks of one: their forms without numbers, their memory, their derivative."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.call import graph_arguments  # noqa: F401, registers the range checks
from leporello.call.values import values_of
from leporello.engine.registered_plans import RegisteredPlan
from tests.nets.twins import FASTEST, normal, shaken, somewhere

operators: Any = torch.ops.leporello


def registered(engine: str, grad: bool) -> tuple[RegisteredPlan, list[Tensor]]:
    """A plan with the values of a call."""
    net = lp.Recurrent(shaken(lp.LSTM(3, 4)), engine=engine)
    call = net._checked(normal(5, 2, 3, grad=grad), None, resets=somewhere(5, 2))
    with torch.set_grad_enabled(grad):
        plan, _ = net._plan_cache.plan(net.cell, call, net.gradient, engine)
    return RegisteredPlan(plan), values_of(plan.loop, call)


@pytest.mark.parametrize("engine", FASTEST)
def test_sweeps_pass_the_checks_of_torch(engine: str) -> None:
    plain, values = registered(engine, grad=False)
    torch.library.opcheck(operators.plain_sweep.default, (plain.name, 5, 2, [value.detach() for value in values]))
    known, values = registered(engine, grad=True)
    torch.library.opcheck(operators.forward_sweep.default, (known.name, 5, 2, values, None))
    results = operators.forward_sweep(known.name, 5, 2, values, None)
    own = [values[place] for place in known.reads[0]] + [results[place] for place in known.reads[1]] + results[-1:]
    gradients = [torch.ones_like(results[0]), None, None]
    reads = [value.detach() for value in own]
    torch.library.opcheck(
        operators.backward_sweep.default,
        (known.name, 5, 2, reads, gradients, None),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_looks_pass_the_checks_of_torch() -> None:
    torch.library.opcheck(operators.lengths_in_range.default, (torch.tensor([1, 3]), 3))
    torch.library.opcheck(operators.classes_in_range.default, (torch.tensor([[1, 0]]), 2, "targets", False))
    torch.library.opcheck(operators.probability_in_range.default, (torch.tensor(0.5), "(5, 2)"))


def test_a_plan_has_a_name_for_as_long_as_somebody_holds_it() -> None:
    known, values = registered("stepwise", grad=False)
    name, values = known.name, [value.detach() for value in values]
    operators.plain_sweep(name, 5, 2, values)
    del known
    with pytest.raises(lp.errors.EngineRefusal, match="is gone"):
        operators.plain_sweep(name, 5, 2, values)
