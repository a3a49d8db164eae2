"""Values of every step by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import (
    FASTEST,
    STEPWISE,
    agrees_with_the_plain_loop,
    close,
    gradients,
    normal,
    shaken,
    somewhere,
)


class Rates(lp.Cell):
    """h' = 0.9 h + 0.1 W r(h) + U x;  names r before and after."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.9 * h + 0.1 * self.W(lp.named(torch.tanh(h), "before")) + self.U(x)
        r = lp.named(torch.tanh(h), "r")
        return r.sum(-1, keepdim=True), h


def test_a_named_value_is_the_value_itself() -> None:
    value = torch.ones(3)
    assert lp.named(value, "r") is value


@pytest.mark.parametrize("engine", FASTEST)
def test_states_and_named_values_are_recorded_at_every_step(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.record(Rates(), "h", "r", "before")), engine=engine)
    x = normal(5, 2, 3, grad=True)
    (outputs, values), final = net(x)
    assert list(values) == ["h", "r", "before"]
    close(values["r"], torch.tanh(values["h"]))
    close(values["h"][-1], final)
    close(values["before"][1:], values["r"][:-1])
    close(values["before"][0], torch.zeros(2, 4, dtype=torch.float64), tolerance=0)
    close(outputs, values["r"].sum(-1, keepdim=True))
    agrees_with_the_plain_loop(net, x, lengths=[5, 2], resets=somewhere(5, 2))


@pytest.mark.parametrize("engine", STEPWISE)
def test_what_is_recorded_can_be_differentiated(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.record(Rates(), "r")), engine=engine)
    x = normal(4, 2, 3, grad=True)
    (_, values), _ = net(x)
    h, rates = torch.zeros(2, 4, dtype=torch.float64), []
    for step in x:
        h = 0.9 * h + 0.1 * net.cell.cell.W(torch.tanh(h)) + net.cell.cell.U(step)
        rates.append(torch.tanh(h))
    sources = [x, *net.parameters()]
    close(gradients(values["r"], sources), gradients(torch.stack(rates), sources))


def test_by_default_all_state_leaves_are_recorded() -> None:
    cell = lp.LSTM(3, 4)
    (output, values), state = lp.record(cell)(torch.ones(2, 3))
    assert list(values) == ["h", "c"]
    close((values["h"], values["c"]), state, tolerance=0)
    close(output, state[0], tolerance=0)
    stack = lp.record(lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 2)))
    assert list(stack(torch.ones(2, 3))[0][1]) == ["0.h", "0.c", "1.h"]


def test_cells_of_a_stack_are_recorded_by_their_names() -> None:
    net = lp.Recurrent(lp.record(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 2)), "0.h"))
    with torch.no_grad():
        (outputs, values), final = net(normal(5, 2, 3).float())
    assert values["0.h"].shape == (5, 2, 4)
    assert torch.equal(values["0.h"][-1], final[0])
    assert outputs.shape == (5, 2, 2)


def test_the_rates_of_leaky_units_are_named() -> None:
    cell = lp.Leaky(3, 4, 2, alpha=0.2, form="current", nonlinearity="softplus")
    with torch.no_grad():
        (_, values), _ = lp.Recurrent(lp.record(cell, "r", "h"))(normal(5, 2, 3).float())
    assert torch.equal(values["r"], nn.functional.softplus(values["h"]))


def test_recording_does_not_change_what_is_computed() -> None:
    cell = shaken(Rates())
    x = normal(5, 2, 3, grad=True)
    (outputs, _), final = lp.Recurrent(lp.record(cell, "r"))(x)
    wanted = lp.Recurrent(cell)(x)
    close((outputs, final), wanted)
    sources = [x, *cell.parameters()]
    close(gradients((outputs, final), sources), gradients(wanted, sources))


def test_what_is_forced_is_recorded_as_it_was_put_out() -> None:
    net = lp.Recurrent(shaken(lp.record(lp.Jordan(3, 4, 2))))
    y = normal(4, 2, 2, seed=4)
    (outputs, values), final = net(normal(4, 2, 3), targets=y)
    close(values["o"], outputs)
    close(final, y[-1], tolerance=0)


@pytest.mark.parametrize("engine", STEPWISE)
def test_an_unknown_name_is_refused_with_those_known(engine: str) -> None:
    net = lp.Recurrent(lp.record(Rates(), "h", "rate"), engine=engine)
    with pytest.raises(ArgumentError, match="no value 'rate' to record") as refusal:
        net(normal(4, 2, 3).float())
    for known in ("h", "r", "before", 'lp.named(value, "rate")'):
        assert known in str(refusal.value)


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(ArgumentError, match="returns a state and no output"):
        lp.record(nn.GRUCell(3, 4))
    with pytest.raises(ArgumentError, match="its step is what can be recorded"):
        lp.record(lp.Recurrent(lp.GRU(3, 4)))
    with pytest.raises(ArgumentError, match="'cell' is no step"):
        lp.record(3)


class Plain(nn.Module):
    """A module whose state is a tuple, and which names a value inside."""

    def __init__(self) -> None:
        super().__init__()
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, count = state
        a = self.U(x) + self.W(h)
        h = lp.named(torch.tanh(a), "rate")
        return h.sum(-1, keepdim=True), (h, count + 1)


def plain_state() -> tuple[Tensor, Tensor]:
    return normal(2, 4, seed=7), torch.zeros(2, 1, dtype=torch.float64)


@pytest.mark.parametrize("engine", FASTEST)
def test_plain_modules_are_recorded_by_position_name_and_variable(engine: str) -> None:
    module = shaken(Plain())
    net = lp.Recurrent(lp.record(module, 0, "state1", "a", "rate", "h"), engine=engine)
    x = normal(5, 2, 3, grad=True)
    (outputs, values), final = net(x, plain_state())
    assert list(values) == [0, "state1", "a", "rate", "h"]
    close(values[0], torch.tanh(values["a"]))
    close(values["h"], values[0], tolerance=0)
    close(values["rate"], values[0], tolerance=0)
    close(values["state1"][-1], final[1], tolerance=0)
    assert values["state1"][:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    wanted = lp.Recurrent(module, engine=engine)(x, plain_state())
    close((outputs, final), wanted)
    sources = [x, *module.parameters()]
    close(gradients((outputs, final), sources), gradients(wanted, sources))
    (_, every), _ = lp.Recurrent(lp.record(module), engine=engine)(x, plain_state())
    assert list(every) == ["state0", "state1"]


def test_functions_and_variables_of_cells_are_recorded() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        twice = 2 * x
        return twice, h + twice

    (_, values), _ = lp.Recurrent(lp.record(step, "twice", "h"))(torch.ones(3, 2, 4), torch.zeros(2, 4))
    assert values["twice"].unique().tolist() == [2]
    assert values["h"][:, 0, 0].tolist() == [2, 4, 6]
    cell = lp.Elman(3, 4, 2)
    (_, values), _ = lp.Recurrent(lp.record(cell, "a", "h"))(torch.ones(3, 2, 3))
    torch.testing.assert_close(torch.tanh(values["a"]), values["h"])


class LogProbabilities(lp.Elman):
    def forward(self, x, h):
        o, h = super().forward(x, h)
        return o.log_softmax(-1), h


def test_variables_of_a_base_that_is_called_are_recorded_and_its_own_names_win() -> None:
    torch.manual_seed(0)
    cell, inputs = LogProbabilities(3, 5, 7).double(), torch.randn(4, 1, 3, dtype=torch.float64)
    (outputs, seen), _ = lp.Recurrent(lp.record(cell, "a", "h", "o"))(inputs)
    torch.testing.assert_close(torch.tanh(seen["a"]), seen["h"])
    torch.testing.assert_close(seen["o"].log_softmax(-1), outputs)
    strip = lp.fold(cell, inputs[0]).unfold(4)
    strip.run(inputs)
    assert "a(1)" in strip.text(values=True)


def test_an_unknown_position_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no value 2 to record") as refusal:
        lp.record(Plain(), 2)(torch.zeros(2, 3), (torch.zeros(2, 4), torch.zeros(2, 1)))
    assert "from 0 to 1" in str(refusal.value)


def test_recordings_are_apart() -> None:
    """What one recording hears, another does not."""
    first = lp.record(lp.Stack(lp.record(Rates(), "r"), ReadsBoth()), "0.h")
    (output, values), _ = first(torch.ones(2, 3))
    assert list(values) == ["0.h"]
    assert output.shape == (2, 4)


class ReadsBoth(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)

    def forward(self, x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        output, values = x
        return output + values["r"], h
