"""Two calls with the state handed on are one call, and so is a step at a time."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch

import leporello as lp
from tests.cells.examples import EXAMPLES
from tests.nets.twins import close, crossed, gradients, normal, quickly, said, shaken, somewhere, state_like

LENGTH, BATCH = 6, 3
MORE = {
    "decoder": lambda: lp.Feedback(lp.LSTM(3 + 2, 2), lambda o: torch.softmax(o, -1)),
    "stack": lambda: lp.Stack(lp.LSTM(3, 4), lp.TimeDelay(4, 2, 3), lp.Jordan(2, 3, 2), dropout=0.5),
}
FORCED = ["Jordan", "ElmanJordan", "decoder", "stack"]
QUICK = ("Jordan", "GRU", "LSTM with projection", "ZoneoutLSTM", "Leaky", "LIF", "Perceptron", "TimeDelay", *MORE)


@functools.cache
def net_of(name: str, engine: str = "stepwise") -> lp.Recurrent:
    """In train(): what draws, draws."""
    return lp.Recurrent(shaken((EXAMPLES | MORE)[name]()).train(), engine=engine)


def part(arguments: dict[str, Any], times: slice) -> dict[str, Any]:
    """What a call over some of the steps is given."""
    found = {name: value[times] for name, value in arguments.items() if name not in ("draws", "lengths")}
    found["draws"] = [draw[times] for draw in arguments["draws"]]
    return found


def in_parts(net: lp.Recurrent, x: torch.Tensor, state: Any, borders: list[int], arguments: dict[str, Any]) -> Any:
    outputs = []
    for start, end in itertools.pairwise(borders):
        some, state = net(x[start:end], state, **part(arguments, slice(start, end)))
        outputs.append(some)
    return torch.cat(outputs), state


def in_steps(net: lp.Recurrent, x: torch.Tensor, state: Any, arguments: dict[str, Any]) -> Any:
    outputs = []
    for time in range(LENGTH):
        names = {"resets": "reset", "targets": "target"}
        given = {names.get(name, name): value[time] for name, value in arguments.items() if name != "draws"}
        output, state = net.step(x[time], state, draws=[draw[time] for draw in arguments["draws"]], **given)
        outputs.append(output)
    return torch.stack(outputs), state


def continues(net: lp.Recurrent, arguments: dict[str, Any], grad: bool = True) -> None:
    x, state = normal(LENGTH, BATCH, 3, grad=grad), state_like(net, BATCH, grad=grad)
    arguments["draws"] = net.draw(x, state, **arguments)
    sources = [x, *torch.utils._pytree.tree_leaves(state), *net.parameters()] if grad else []
    whole = net(x, state, **arguments)
    wanted = gradients(whole, sources) if grad else []
    ways = {
        "two calls": in_parts(net, x, state, [0, 2, LENGTH], arguments),
        "a step and the rest": in_parts(net, x, state, [0, 1, LENGTH], arguments),
        "step by step": in_steps(net, x, state, arguments),
    }
    for way, got in ways.items():
        with said(way):
            close(got, whole)
            close(gradients(got, sources) if grad else [], wanted, what="gradient")


@pytest.mark.parametrize("name", quickly([*EXAMPLES, *MORE], *QUICK))
def test_calls_continue_each_other(name: str) -> None:
    with torch.no_grad():
        continues(net_of(name), {"resets": somewhere(LENGTH, BATCH)}, grad=False)


@pytest.mark.parametrize("name", quickly(["LSTM", "ZoneoutLSTM", "TimeDelay", "stack"], "TimeDelay", "stack"))
def test_gradients_cross_the_border_between_calls(name: str) -> None:
    continues(net_of(name), {"resets": somewhere(LENGTH, BATCH)})


@pytest.mark.parametrize(("name", "engine"), crossed(FORCED, cpu=("Jordan", "decoder"), stepwise=["ElmanJordan"]))
def test_forced_calls_continue_each_other(name: str, engine: str) -> None:
    forcing = somewhere(LENGTH, BATCH, 0.5, seed=9)
    y = normal(LENGTH, BATCH, 2, seed=8)
    continues(net_of(name, engine), {"targets": y})
    continues(net_of(name, engine), {"targets": y, "forcing": forcing, "resets": somewhere(LENGTH, BATCH)})


@pytest.mark.parametrize("name", ["LSTM", "TimeDelay", "stack"])
def test_the_last_call_may_have_lengths(name: str) -> None:
    net, x = net_of(name), normal(LENGTH, BATCH, 3)
    draws = net.draw(x)
    lengths = torch.tensor([6, 3, 5])
    with torch.no_grad():
        whole = net(x, lengths=lengths, draws=draws)
        one, state = net(x[:2], draws=[draw[:2] for draw in draws])
        two, state = net(x[2:], state, lengths=lengths - 2, draws=[draw[2:] for draw in draws])
    close((torch.cat([one, two]), state), whole)


def test_a_detached_state_stops_the_gradient() -> None:
    net, x = net_of("GRU"), normal(4, 2, 3, grad=True)
    _, state = net(x[:2])
    net(x[2:], lp.detach(state))[0].sum().backward()
    assert (x.grad[:2] == 0).all()
    assert (x.grad[2:] != 0).all()
