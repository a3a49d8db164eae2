"""Truncated gradients can be differentiated again, and are cut at the same borders in every order, as by `detach`.

Across borders a truncated gradient is no gradient of any function: finite differences hold within one window only.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.call.values import passing_of
from leporello.nets.plain_loop import plain_loop
from tests.gradient.by_hand import FEW_PAIRS, TOLERANCE, Case, Nets, filled
from tests.nets.twins import ALL, FASTEST, STEPWISE, close, normal, shaken, somewhere

LENGTH, BATCH, STEPS = 7, 2, 3


def again(case: Case, results: Any, order: int = 2) -> list[Tensor | None]:
    """The gradient of a penalty on the gradient; in higher orders on that one's gradient in turn."""
    value = case.loss(*results)
    for _ in range(order - 1):
        found = torch.autograd.grad(value, case.sources, create_graph=True, allow_unused=True)
        value = sum((gradient.square().mean() for gradient in found if gradient is not None), torch.zeros(()).double())
    return list(torch.autograd.grad(value, case.sources, allow_unused=True))


def by_hand(case: Case, steps: int) -> Any:
    state, outputs = case.cell.initial_state(BATCH), []
    for time, x in enumerate(case.inputs):
        output, state = case.cell(x, lp.detach(state) if time % steps == 0 else state)
        outputs.append(output)
    return torch.stack(outputs), state


@pytest.mark.parametrize(("name", "engine"), FEW_PAIRS)
def test_second_derivatives_are_those_of_the_loop_with_detach(name: str, engine: str) -> None:
    case = Case.of(Nets.of(name), LENGTH, BATCH)
    found = again(case, case.nets[lp.Truncated(STEPS), engine](case.inputs))
    wanted = again(case, by_hand(case, STEPS))
    close(filled(found, case.sources), filled(wanted, case.sources), TOLERANCE, "second derivative")


@pytest.mark.parametrize(
    "engine", [pytest.param(engine, marks=[pytest.mark.slow] * (engine != "reference")) for engine in ALL]
)
@pytest.mark.parametrize(("method", "steps"), [(lp.Truncated(STEPS), STEPS), (lp.Full(), LENGTH)], ids=repr)
def test_so_are_third_and_fourth_derivatives(method: Any, steps: int, engine: str) -> None:
    case = Case.of(Nets(shaken(lp.RNN(3, 2))), LENGTH, BATCH)
    for order in (3, 4):
        found = again(case, case.nets[method, engine](case.inputs), order)
        wanted = again(case, by_hand(case, steps), order)
        close(filled(found, case.sources), filled(wanted, case.sources), 10 * TOLERANCE, f"derivative {order} of")


@pytest.mark.parametrize("engine", STEPWISE)
def test_second_derivatives_go_with_lengths_and_resets(engine: str) -> None:
    arguments: dict[str, Any] = {"lengths": [7, 5], "resets": somewhere(LENGTH, BATCH)}
    case = Case.of(Nets.of("LSTM"), LENGTH, BATCH, **arguments)
    call = checked_call(case.cell, case.inputs, None, **arguments)
    wanted = again(case, plain_loop(case.cell, call, passing=passing_of(call, lp.Truncated(STEPS))))
    found = again(case, case.nets[lp.Truncated(STEPS), engine](case.inputs, **arguments))
    close(found, wanted, TOLERANCE, "second derivative")


@pytest.mark.parametrize("engine", FASTEST)
def test_derivatives_within_a_window_are_those_of_finite_differences(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.LSTM(2, 2)), gradient=lp.Truncated(STEPS), engine=engine)
    names = [name for name, _ in net.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        outputs, _ = torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,))
        return outputs

    values = (normal(STEPS, 2, 2, grad=True), *(parameter.detach().requires_grad_() for parameter in net.parameters()))
    assert gradcheck(run, values, fast_mode=True)
    assert gradgradcheck(run, values, fast_mode=True)
