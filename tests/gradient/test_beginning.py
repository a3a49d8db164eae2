"""A call's beginning is a border: what is handed in gets no gradient, what a reset goes back to does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.loop.state import leaves_of
from tests.gradient.by_hand import PAIRS, TOLERANCE, Case, Nets, filled
from tests.nets.twins import ENGINES, FASTEST, STEPWISE, close, normal, shaken, somewhere, state_like, weighed


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_a_state_handed_in_has_no_gradient_as_if_it_were_detached(name: str, engine: str) -> None:
    """None, not zeros: that is what autograd gives for a detached tensor."""
    case = Case.of(Nets.of(name), 7, 3, handed=True)
    found, wanted = case.by_net(lp.Truncated(3), engine), case.by_hand(3)
    close(found, wanted, TOLERANCE, "gradient")
    assert found[1 : 1 + len(leaves_of(case.state))] == [None] * len(leaves_of(case.state))


@pytest.mark.parametrize("engine", ENGINES)
def test_where_only_the_state_requires_a_gradient_nothing_does(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)).requires_grad_(False), gradient=lp.Truncated(3), engine=engine)
    outputs, final = net(normal(5, 2, 3), state_like(net, 2))
    assert not outputs.requires_grad
    assert not final.requires_grad


@pytest.mark.parametrize("engine", ENGINES)
def test_no_gradient_passes_from_call_to_call(engine: str) -> None:
    """Calls of one window each, the state handed on as it is, are one call of many windows."""
    case = Case.of(Nets.of("LSTM"), 7, 3)
    net = case.nets[lp.Truncated(3), engine]
    parts, state = [], None
    for window in case.inputs.split(3):
        outputs, state = net(window, state)
        parts.append(outputs)
    found = torch.autograd.grad(case.loss(torch.cat(parts), state), case.sources)
    close(found, case.by_net(lp.Truncated(3), engine), TOLERANCE, "gradient")


@pytest.mark.parametrize("engine", STEPWISE)
def test_a_step_of_its_own_is_a_window_of_its_own(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), gradient=lp.Truncated(3), engine=engine)
    x, state = normal(2, 3, grad=True), state_like(net, 2)
    output, _ = net.step(x, state)
    assert torch.autograd.grad(output.sum(), state, allow_unused=True, retain_graph=True) == (None,)
    assert torch.autograd.grad(output.sum(), x)[0].any()


@pytest.mark.parametrize("engine", FASTEST)
def test_a_learned_initial_state_gets_gradient_from_resets_alone(engine: str) -> None:
    nets = Nets(shaken(lp.LSTM(3, 4, learned=True)))
    initial = dict(nets.cell.named_parameters())
    places = [list(initial).index(name) for name in ("initial.h", "initial.c")]
    without = Case.of(nets, 7, 3)
    found = without.by_net(lp.Truncated(3), engine)[1:]
    assert [found[place] for place in places] == [None, None]
    for resets in (somewhere(7, 3), torch.arange(7).unsqueeze(1).expand(7, 3) % 3 == 0):  # anywhere; on the borders
        case = Case.of(nets, 7, 3, resets=resets)
        found = case.by_net(lp.Truncated(3), engine)
        close(filled(found, case.sources), filled(case.by_hand(3), case.sources), TOLERANCE, "gradient")
        assert all(found[1:][place].any() for place in places)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cell_without_initial_state_goes_back_to_the_one_handed_in_and_gives_it_gradient(engine: str) -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + 2 * h)
        return h, h

    x, start, resets = normal(7, 3, 2, grad=True), normal(3, 2, seed=2, grad=True), somewhere(7, 3)

    def by_hand() -> Any:
        h, outputs = start, []
        for time in range(7):
            h = h.detach() if time % 3 == 0 else h
            output, h = step(x[time], torch.where(resets[time].unsqueeze(1), start, h))
            outputs.append(output)
        return torch.stack(outputs), h

    net = lp.Recurrent(step, gradient=lp.Truncated(3), engine=engine)
    found = torch.autograd.grad(weighed(net(x, start, resets=resets)), [x, start])
    close(found, torch.autograd.grad(weighed(by_hand()), [x, start]), TOLERANCE, "gradient")
    assert found[1].any()
