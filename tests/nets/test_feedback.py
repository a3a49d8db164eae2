"""Cells that read what they put out a step before: free, forced, and by the toss of a coin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import (
    ENGINES,
    FASTEST,
    STEPWISE,
    agrees_with_the_plain_loop,
    close,
    crossed,
    gradients,
    normal,
    said,
    shaken,
    somewhere,
    state_like,
    thoroughly,
)

LENGTH, BATCH, CLASSES = 5, 3, 4


def choice(output: Tensor) -> Tensor:
    return one_hot(output.argmax(-1), output.shape[-1]).to(output.dtype)


FEEDS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "itself": None,
    "softmax": lambda output: torch.softmax(output, -1),
    "choice": choice,
}


@functools.cache
def decoder(feed: str, engine: str, features: int = 3) -> lp.Recurrent:
    """An LSTM that reads the features and four fed-back values."""
    return lp.Recurrent(shaken(lp.Feedback(lp.LSTM(features + CLASSES, CLASSES), FEEDS[feed])), engine=engine)


@pytest.mark.parametrize(("feed", "engine"), crossed(FEEDS, cpu=("softmax", "choice"), stepwise=["itself"]))
def test_a_decoder_gives_what_the_plain_loop_gives(feed: str, engine: str) -> None:
    net = decoder(feed, engine)
    x, state = normal(LENGTH, BATCH, 3, grad=True), state_like(net, BATCH)
    floats = normal(LENGTH, BATCH, CLASSES, seed=4, grad=True)
    calls: dict[str, dict[str, Any]] = {
        "free": {},
        "forced": {"targets": floats},
        "coins": {"targets": floats, "forcing": somewhere(LENGTH, BATCH, 0.5)},
        "all": {
            "targets": floats,
            "forcing": somewhere(LENGTH, BATCH, 0.5),
            "lengths": [5, 2, 4],
            "resets": somewhere(LENGTH, BATCH, seed=9),
        },
    }
    for call, arguments in calls.items():
        with said(call):
            agrees_with_the_plain_loop(net, x, state, **arguments)


@pytest.mark.parametrize("engine", STEPWISE)
def test_a_decoder_without_input_gives_what_the_plain_loop_gives(engine: str) -> None:
    net = decoder("softmax", engine, features=0)
    state = state_like(net, BATCH)
    agrees_with_the_plain_loop(net, None, state, steps=LENGTH)
    y = normal(LENGTH, BATCH, CLASSES, seed=4)
    agrees_with_the_plain_loop(net, None, state, targets=y, forcing=somewhere(LENGTH, BATCH, 0.5))


def test_a_decoder_is_the_loop_written_out() -> None:
    net = decoder("softmax", "stepwise")
    x, cell, outputs = normal(LENGTH, BATCH, 3, grad=True), net.cell.cell, []
    state, fed = None, torch.zeros(BATCH, CLASSES, dtype=torch.float64)
    for step in x:
        output, state = cell(torch.cat([step, fed], -1), state)
        fed = torch.softmax(output, -1)
        outputs.append(output)
    wanted = torch.stack(outputs), (state, fed)
    got = net(x)
    close(got, wanted)
    sources = [x, *net.parameters()]
    close(gradients(got, sources), gradients(wanted, sources))


def test_forced_always_each_step_reads_the_target_before() -> None:
    net = decoder("softmax", "stepwise")
    x, y = normal(LENGTH, BATCH, 3), normal(LENGTH, BATCH, CLASSES, seed=4)
    before = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
    outputs, state = lp.Recurrent(net.cell.cell)(torch.cat([x, before], -1))
    close(net(x, targets=y), (outputs, (state, y[-1])))
    close(net(x, targets=y, forcing=1), net(x, targets=y), tolerance=0)
    close(net(x, targets=y, forcing=torch.ones(LENGTH, BATCH).bool()), net(x, targets=y))


def test_classes_are_fed_as_one_hot_rows() -> None:
    net = decoder("choice", "stepwise")
    x = normal(LENGTH, BATCH, 3)
    classes = torch.randint(CLASSES, (LENGTH, BATCH), generator=torch.Generator().manual_seed(3))
    rows = one_hot(classes, CLASSES).double()
    for indices in (classes, classes.int(), classes.to(torch.uint8)):
        close(net(x, targets=indices), net(x, targets=rows), tolerance=0)
    coin = somewhere(LENGTH, BATCH, 0.5)
    close(net(x, targets=classes, forcing=coin), net(x, targets=rows, forcing=coin), tolerance=0)


def test_never_forced_is_free() -> None:
    net = decoder("softmax", "stepwise")
    x, y = normal(LENGTH, BATCH, 3), normal(LENGTH, BATCH, CLASSES, seed=4)
    for never in (0, 0.0, torch.zeros(LENGTH, BATCH).bool()):
        close(net(x, targets=y, forcing=never), net(x))


def test_a_mask_governs_what_its_step_hands_on() -> None:
    net = decoder("itself", "stepwise")
    x, y = normal(LENGTH, BATCH, 3), normal(LENGTH, BATCH, CLASSES, seed=4)
    mask = torch.zeros(LENGTH, BATCH, dtype=torch.bool)
    mask[2, 1] = True
    free, forced = net(x)[0], net(x, targets=y, forcing=mask)[0]
    same = (free - forced).abs().amax(-1) < 1e-12
    assert torch.equal(same, ~((torch.arange(LENGTH).unsqueeze(1) > 2) & (torch.arange(BATCH) == 1)))


class Echo(lp.Cell):
    """Puts out what it read: a forced step shows in the next output."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = 1

    def forward(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return x, ()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_coin_is_tossed_for_every_step_and_row(engine: str) -> None:
    net, chance = lp.Recurrent(lp.Feedback(Echo()), engine=engine), 0.3
    y = torch.arange(1.0, 61).reshape(60, 1, 1).expand(60, 50, 1)
    outputs, (_, last) = net(None, targets=y, forcing=chance)
    handed = torch.cat([outputs[1:], last.unsqueeze(0)])
    coins = (handed == y).squeeze(-1).double()
    assert abs(coins.mean().item() - chance) < 0.04  # 3,000 tosses: five standard deviations
    for axis in (0, 1):
        rates = coins.mean(axis)
        assert 0.5 < rates.std().item() / (chance * (1 - chance) / coins.shape[axis]) ** 0.5 < 1.5
    assert not torch.equal(net(None, targets=y, forcing=chance)[0], outputs)
    torch.manual_seed(3)
    again = net(None, targets=y, forcing=chance)[0]
    torch.manual_seed(3)
    assert torch.equal(net(None, targets=y, forcing=chance)[0], again)


def test_a_reset_goes_back_to_the_initial_state_of_what_is_fed() -> None:
    net = lp.Recurrent(lp.Feedback(Echo()))
    y = torch.ones(4, 1, 1)
    resets = torch.tensor([[False], [False], [True], [False]])
    assert net(None, targets=y, resets=resets)[0].flatten().tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_cell_may_name_its_feedback_and_say_what_is_fed() -> None:
    class Choosing(lp.Jordan):
        def feed(self, output: Tensor) -> Tensor:
            return torch.softmax(output, -1)

    net = lp.Recurrent(shaken(Choosing(3, 4, 2)))
    outputs, final = net(normal(4, 2, 3))
    close(final, torch.softmax(outputs[-1], -1))
    y = normal(4, 2, 2, seed=4)
    close(net(normal(4, 2, 3), targets=y)[1], y[-1], tolerance=0)
    agrees_with_the_plain_loop(net, normal(4, 2, 3, grad=True), targets=y, forcing=somewhere(4, 2, 0.5))


@pytest.mark.parametrize("engine", FASTEST)
def test_what_is_fed_may_be_drawn(engine: str) -> None:
    """A choice with noise: the draws are inputs, and the same ones give the same result."""

    def sampled(output: Tensor) -> Tensor:
        noise = -torch.log(-torch.log(torch.rand_like(output)))
        return choice(output + noise)

    net = lp.Recurrent(shaken(lp.Feedback(lp.GRU(CLASSES, CLASSES), sampled)), engine=engine)
    state = state_like(net, BATCH)
    agrees_with_the_plain_loop(net, None, state, steps=LENGTH)
    assert not torch.equal(net(None, state, steps=LENGTH)[0], net(None, state, steps=LENGTH)[0])


def test_the_size_of_what_is_fed_follows_from_feed() -> None:
    assert lp.Feedback(lp.GRU(5, 4), lambda o: o[:, :2]).initial_state(3)[1].shape == (3, 2)
    assert lp.Feedback(lp.GRU(5, 4), size=3).initial_state(2)[1].shape == (2, 3)

    class Unknown(lp.Cell):
        pass

    with pytest.raises(ArgumentError, match="size of what is fed back is not known"):
        lp.Feedback(Unknown(h=3))
    with pytest.raises(ArgumentError, match="declares its state"):
        lp.Feedback(torch.nn.GRUCell(3, 4))


def test_a_stack_in_feedback_is_forced_as_a_whole() -> None:
    net = lp.Recurrent(shaken(lp.Feedback(lp.Stack(lp.GRU(5, 3), lp.RNN(3, 2)))))
    assert net.cell.state_names() == ["0.h", "1.h", "fed"]
    y = normal(4, 2, 2, seed=4)
    agrees_with_the_plain_loop(net, normal(4, 2, 3, grad=True), targets=y, forcing=somewhere(4, 2, 0.5))


@pytest.mark.parametrize("forcing", [None, *thoroughly(1), 0.5, torch.rand(7, 5) < 0.5])
@pytest.mark.parametrize("batch_first", [False, *thoroughly(True)])
def test_forced_calls_after_the_first_are_cached_and_right(forcing, batch_first, monkeypatch):
    net, plain = (lp.Recurrent(lp.Jordan(3, 6, 4), batch_first=batch_first, engine="stepwise") for _ in range(2))
    plain.load_state_dict(net.state_dict())
    for size in (5, 5, 3):
        x, y = torch.randn(7, size, 3), torch.randn(7, size, 4)
        coin = forcing[:, :size] if isinstance(forcing, torch.Tensor) else forcing
        if batch_first:
            x, y, coin = (v.transpose(0, 1) if isinstance(v, torch.Tensor) else v for v in (x, y, coin))
        plain._plan_cache.calls.clear()
        plain._plan_cache.recent = None
        torch.manual_seed(size)
        got = net(x, targets=y, forcing=coin)
        torch.manual_seed(size)
        wanted = plain(x, targets=y, forcing=coin)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    monkeypatch.setattr(net, "_checked", None)  # what a call that is not cached would need
    net(x, targets=y, forcing=coin)


def test_wrong_targets_of_a_cached_call_are_refused():
    net = lp.Recurrent(lp.Jordan(3, 6, 4), engine="stepwise")
    x, y = torch.randn(7, 5, 3), torch.randn(7, 5, 4)
    net(x, targets=y)
    for wrong in (y[:6], y[:, :4], y[..., :3]):
        with pytest.raises(lp.errors.ArgumentError, match="'targets' has the wrong form"):
            net(x, targets=wrong)
    with pytest.raises(lp.errors.ArgumentError, match="'forcing' is no probability"):
        net(x, targets=y, forcing=1.5)
