"""Stacks of cells are cells."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

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
    state_like,
)


@functools.cache
def net_of(engine: str) -> lp.Recurrent:
    return lp.Recurrent(shaken(lp.Stack(lp.LSTM(3, 4), lp.Perceptron(4, 3, 2), lp.Jordan(2, 3, 5))), engine=engine)


@pytest.mark.parametrize("engine", FASTEST)
def test_a_stack_of_different_cells_gives_what_the_plain_loop_gives(engine: str) -> None:
    net = net_of(engine)
    x, state = normal(5, 3, 3, grad=True), state_like(net, 3)
    agrees_with_the_plain_loop(net, x, state, lengths=torch.tensor([5, 1, 3]), resets=somewhere(5, 3))


def test_a_stack_is_its_cells_run_one_after_another() -> None:
    net = net_of("stepwise")
    x, state = normal(5, 3, 3, grad=True), state_like(net, 3)
    outputs, after, final = x, [], net(x, state)
    for cell, own in zip(net.cell.cells, state, strict=True):
        outputs, last = lp.Recurrent(cell)(outputs, own)
        after.append(last)
    close(final, (outputs, tuple(after)))
    sources = [x, *net.parameters()]
    close(gradients(final, sources), gradients((outputs, tuple(after)), sources))


def test_the_state_is_the_tuple_of_the_cells_states() -> None:
    stack = lp.Stack(lp.LSTM(3, 4), lp.Perceptron(4, 3, 2), lp.Jordan(2, 3, 5))
    state = stack.initial_state(7)
    assert stack.state_names() == ["0.h", "0.c", "2.o"]
    assert (state[0].h.shape, state[1], state[2].shape) == ((7, 4), (), (7, 5))
    assert (stack.inputs, stack.outputs, stack.feedback_leaf()) == (3, 5, "2.o")
    assert lp.Stack(lp.Jordan(3, 4, 2), lp.GRU(2, 3)).feedback_leaf() is None


def test_stacks_stand_in_stacks() -> None:
    inner = lp.Stack(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 2)), lp.RNN(2, 3))
    assert inner.state_names() == ["0.0.h", "0.1.h", "1.h"]
    flat = lp.Stack(*inner.cells[0].cells, inner.cells[1])
    with torch.no_grad():
        got, wanted = lp.Recurrent(inner)(normal(4, 2, 3).float()), lp.Recurrent(flat)(normal(4, 2, 3).float())
    close(got, wanted, tolerance=0)


def test_a_stack_without_state_can_be_called() -> None:
    stack = lp.Stack(lp.Perceptron(3, 4, 2), lp.Perceptron(2, 4, 5))
    output, state = stack(torch.ones(7, 3))
    assert output.shape == (7, 5)
    assert state == ((), ())


def test_dropout_stands_between_cells_and_is_drawn_per_step_row_and_value() -> None:
    class Copy(lp.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = self.outputs = 50

        def forward(self, x: torch.Tensor, state: tuple[()]) -> tuple[torch.Tensor, tuple[()]]:
            return x, ()

    net = lp.Recurrent(lp.Stack(Copy(), Copy(), Copy(), dropout=0.25))
    outputs, _ = net(torch.ones(20, 30, 50))
    kept = outputs != 0
    assert abs(kept.double().mean().item() - 0.75**2) < 0.01  # 30,000 values, dropped in two places
    assert (outputs[kept] - 1 / 0.75**2).abs().max() < 1e-5
    for axis in range(3):
        assert (kept.double().mean(axis) - 0.75**2).abs().max() < 0.5
        assert kept.double().mean(axis).std() > 0
    assert torch.equal(net.eval()(torch.ones(20, 30, 50))[0], torch.ones(20, 30, 50))


@pytest.mark.parametrize("engine", STEPWISE)
def test_dropout_in_a_stack_gives_what_the_plain_loop_gives(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.Stack(lp.GRU(3, 4), lp.RNN(4, 3), dropout=0.5)), engine=engine)
    assert len(net.draw(normal(4, 3, 3))) == 1
    agrees_with_the_plain_loop(net, normal(4, 3, 3, grad=True), resets=somewhere(4, 3))


def test_wrong_stacks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one cell"):
        lp.Stack()
    with pytest.raises(ArgumentError, match="cells that declare their state"):
        lp.Stack(lp.GRU(3, 4), nn.GRUCell(4, 4))
    for dropout in (-0.1, 1.0, 2.0):
        with pytest.raises(ArgumentError, match="'dropout' is no probability"):
            lp.Stack(lp.GRU(3, 4), dropout=dropout)
