"""Every built-in cell with all that a call can ask, against the plain loop: on kernels, some on every engine."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

import leporello as lp
from tests.cells.examples import EXAMPLES, VARIANTS
from tests.laws.windows import windows_of
from tests.nets.twins import (
    ALL,
    FASTEST,
    agrees_with_the_plain_loop,
    crossed,
    normal,
    said,
    shaken,
    somewhere,
    state_like,
    thoroughly,
)

SIZES = [(1, 1), (6, 3)]  # length, batch
WRAPPED = {
    "alone": lambda cell: cell,
    "on a stack": lambda cell: lp.Stack(lp.RNN(3, 3), cell),
    "recorded": lp.record,
}
CALLS = {
    "alone": ["plain", "lengths and resets"],
    "on a stack": ["plain", "lengths and resets"],
    "recorded": ["lengths and resets"],
}
FED_BACK = [name for name in EXAMPLES if EXAMPLES[name]().feedback_leaf()]
ONE_OF_EACH = [name for name in EXAMPLES if name not in VARIANTS]
QUICKLY_FORCED = [
    ("Jordan", "stepwise", "alone"),
    ("ElmanJordan", "cpu", "on a stack"),
]
RANDOM = ["ZoneoutLSTM", "Leaky", "Leaky learned"]


@functools.cache
def net_of(name: str, engine: str, wrapping: str) -> lp.Recurrent:
    return lp.Recurrent(shaken(WRAPPED[wrapping](EXAMPLES[name]())).eval(), engine=engine)


def arguments(call: str, length: int, batch: int) -> dict[str, object]:
    found: dict[str, object] = {}
    if "lengths" in call:
        found["lengths"] = torch.tensor([length, max(1, length // 3), max(1, length - 2)][:batch])
    if "resets" in call:
        found["resets"] = somewhere(length, batch)
    if "coins" in call:
        found["forcing"] = somewhere(length, batch, 0.5, seed=6)
    if "coins" in call or "forced" in call:
        found["targets"] = normal(length, batch, 2, seed=8, grad=True)
    return found


def inputs_of(length: int, batch: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Random numbers; NaN where a row has ended."""
    x = normal(length, batch, 3)
    if lengths is not None:
        x[torch.arange(length).unsqueeze(1) >= lengths] = torch.nan
    return x.requires_grad_()


def agrees(net: lp.Recurrent, calls: list[str]) -> None:
    """In one window, and in windows of a step or two: the state crosses their borders."""
    for call in calls:
        for (length, batch), rows in [(SIZES[0], 512), (SIZES[1], 512), (SIZES[1], 4)]:
            given = arguments(call, length, batch)
            x = inputs_of(length, batch, given.get("lengths"))
            with windows_of(rows), said(f"{call}, {length} steps, windows of {rows}"):
                agrees_with_the_plain_loop(net, x, state_like(net, batch), **given)


@pytest.mark.parametrize(("name", "engine"), crossed(EXAMPLES, cpu=ONE_OF_EACH, stepwise=("Jordan", "TimeDelay")))
def test_a_cell_gives_what_the_plain_loop_gives(name: str, engine: str) -> None:
    agrees(net_of(name, engine, "alone"), CALLS["alone"])


@pytest.mark.parametrize("engine", FASTEST)
@pytest.mark.parametrize("wrapping", thoroughly("on a stack", "recorded"))
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_cell_within_another_gives_what_the_plain_loop_gives(name: str, wrapping: str, engine: str) -> None:
    agrees(net_of(name, engine, wrapping), CALLS[wrapping])


@pytest.mark.parametrize(
    ("name", "engine"),
    crossed(
        ["Elman", "Jordan", "LSTM", "MinGRU", "Perceptron", "TimeDelay"],
        cpu=("LSTM", "MinGRU", "Perceptron"),
        stepwise=("Jordan", "TimeDelay"),
    ),
)
def test_lengths_alone_and_resets_alone_give_what_the_plain_loop_gives(name: str, engine: str) -> None:
    agrees(net_of(name, engine, "alone"), ["lengths", "resets"])


@pytest.mark.parametrize(
    ("name", "engine", "wrapping"),
    [
        pytest.param(*case, marks=[] if case in QUICKLY_FORCED else pytest.mark.slow)
        for case in itertools.product(FED_BACK, ALL, WRAPPED)
    ],
)
def test_a_forced_cell_gives_what_the_plain_loop_gives(name: str, engine: str, wrapping: str) -> None:
    agrees(net_of(name, engine, wrapping), ["forced", "coins", "coins, lengths, resets", "forced, lengths, resets"])


@pytest.mark.parametrize(("name", "engine"), crossed(RANDOM, cpu=("ZoneoutLSTM", "Leaky"), stepwise=["Leaky learned"]))
def test_in_training_it_draws_what_the_plain_loop_draws(name: str, engine: str) -> None:
    net = net_of(name, engine, "alone").train()
    try:
        assert net.draw(normal(2, 1, 3))
        agrees(net, ["plain", "lengths and resets"])
    finally:
        net.eval()
    assert not net.draw(normal(2, 1, 3))


def test_the_cells_that_draw_are_known() -> None:
    def differs(name: str) -> bool:
        cell, x = EXAMPLES[name](), torch.ones(3, 3)
        return not torch.equal(cell(x)[0], cell(x)[0])

    assert [name for name in EXAMPLES if differs(name)] == RANDOM
