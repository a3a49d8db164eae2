"""What runs step by step and what on all steps at once, for the networks whose split is known by heart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu.target import is_drawn_in
from leporello.loop.split import split
from leporello.loop.stages import Split
from leporello.loop.tracing.trace import trace

X = torch.zeros(4, 3)


def split_of(cell: lp.Cell, x: Tensor = X) -> Split:
    return lp.fold(cell, x).split()


class Joined(lp.Cell):
    """One product of the joined row, as text 003 draws it."""

    def __init__(self) -> None:
        super().__init__(h=5)
        self.fc = nn.Linear(3 + 5, 5)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.fc(torch.cat([x, h], -1)))
        return h, h


class Apart(lp.Cell):
    """The same with two products."""

    def __init__(self) -> None:
        super().__init__(h=5)
        self.U, self.W = nn.Linear(3, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.U(x) + self.W(h))
        return h, h


class Written(lp.Cell):
    """A cell from a function of (x, state)."""

    def __init__(self, function: Callable, **leaves: int) -> None:
        super().__init__(**leaves)
        self.function = function

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(x, state)


def test_input_product_leaves_the_loop() -> None:
    split = split_of(lp.Elman(3, 5, 2))
    assert split.before is not None
    assert split.before.products == ["U"]


def test_recurrent_product_stays_inside() -> None:
    split = split_of(lp.Elman(3, 5, 2))
    assert split.inside is not None
    assert (split.inside.products, split.inside.states) == (["W"], ("h",))


def test_output_product_comes_after_the_loop() -> None:
    split = split_of(lp.Elman(3, 5, 2))
    assert split.after is not None
    assert split.after.products == ["V"]


@pytest.mark.parametrize("cell", [lp.RNN(3, 5), lp.GRU(3, 5), lp.LSTM(3, 5), lp.LayerNormLSTM(3, 5)], ids=repr)
def test_cells_of_torch_have_one_product_before_and_one_inside(cell: lp.Cell) -> None:
    split = split_of(cell)
    assert split.before is not None
    assert split.inside is not None
    assert (split.before.products, split.inside.products) == (["U"], ["W"])


def test_layer_norm_of_the_input_leaves_the_loop() -> None:
    before = split_of(lp.LayerNormLSTM(3, 5)).before
    assert before is not None
    assert before.operators == ["mm", "native_layer_norm"]


def test_a_jordan_net_has_its_output_product_inside() -> None:
    inside = split_of(lp.Jordan(3, 5, 2)).inside
    assert inside is not None
    assert inside.products == ["W", "V"]


def test_a_perceptron_is_parallel() -> None:
    assert split_of(lp.Perceptron(3, 5, 2)).parallel


def test_a_teacher_forced_jordan_net_is_parallel() -> None:
    net = lp.Recurrent(lp.Jordan(3, 5, 2))
    split = lp.fold(net, torch.zeros(6, 4, 3), targets=torch.zeros(6, 4, 2)).split()
    assert split.parallel
    assert [stage.states for stage in split.stages if stage.kind == "at once"] == [("o",)]


def test_a_jordan_net_forced_by_coins_is_not_parallel() -> None:
    net = lp.Recurrent(lp.Jordan(3, 5, 2))
    coins = torch.zeros(6, 4, dtype=torch.bool)
    assert not lp.fold(net, torch.zeros(6, 4, 3), targets=torch.zeros(6, 4, 2), forcing=coins).split().parallel


def test_a_time_delay_net_is_nothing_but_shifts() -> None:
    split = split_of(lp.TimeDelay(3, 2, 4))
    assert split.parallel
    assert [stage.operators.count("shift") for stage in split.stages if stage.kind == "at once"] == [3]


def test_nothing_is_read_from_a_sequence_before_time_begins() -> None:
    once = split_of(lp.TimeDelay(3, 2, 4)).stages[0]
    assert once.kind == "once"
    assert [node.name for node in once.reads] == ["K"]


def test_two_layers_have_two_insides_with_the_second_input_product_between() -> None:
    split = split_of(lp.Stack(lp.Elman(3, 5, 4), lp.Elman(4, 5, 2)))
    timed = [(stage.kind, stage.products) for stage in split.stages if stage.kind in ("inside", "at once")]
    assert timed == [
        ("at once", ["cells.0.U"]),
        ("inside", ["cells.0.W"]),
        ("at once", ["cells.0.V", "cells.1.U"]),
        ("inside", ["cells.1.W"]),
        ("at once", ["cells.1.V"]),
    ]
    assert (split.inside, split.before, split.after) == (None, None, None)


def test_a_joined_product_has_the_same_inside_as_two_products() -> None:
    one, two = split_of(Joined()), split_of(Apart())
    assert one.inside is not None
    assert two.inside is not None
    assert one.inside.operators == ["addmm", "tanh"]
    assert len(one.inside.products) == len(two.inside.products) == 1
    width = [node.meta["val"].shape[0] for node in one.inside.reads if node.meta["val"].dim() == 2][-1]
    assert width == 5  # the rows of the matrix that the state meets, and no others


def test_a_state_that_no_step_changes_is_no_cycle() -> None:
    split = split_of(Written(lambda x, s: (x * s, s), s=3))
    assert split.parallel


def test_a_state_of_zeros_shaped_like_itself_is_no_cycle() -> None:
    split = split_of(Written(lambda x, s: (x * s, torch.zeros_like(s)), s=3))
    assert split.parallel


def test_states_that_change_places_are_a_cycle() -> None:
    split = split_of(Written(lambda x, s: (x * s[0], (s[1], s[0])), a=3, b=3))
    assert split.inside is not None
    assert set(split.inside.states) == {"a", "b"}


def test_what_is_made_of_parameters_alone_is_computed_once() -> None:
    cell = Apart()
    nn.utils.parametrizations.weight_norm(cell.W)
    split = split_of(cell)
    assert split.inside is not None
    assert split.stages[0].kind == "once"
    assert "_weight_norm_interface" in split.stages[0].operators
    assert split.inside.operators == ["mm", "add", "tanh"]


class Read(lp.Cell):
    """A wide state that the output reads with weights of the step: the sum is narrow."""

    def __init__(self) -> None:
        super().__init__(h=(5, 7))
        self.W = nn.Linear(3, 7)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.W(x)
        h = 0.9 * h + x.sum(1, keepdim=True).unsqueeze(2)
        return (h * weights.unsqueeze(1)).sum(2), h


def test_a_view_that_one_fused_operator_reads_is_fused_with_it() -> None:
    loop = trace(Read(), X, Read().initial_state(4))
    (inside,) = split(loop, is_drawn_in).insides
    assert [tuple(node.meta["val"].shape[1:]) for node in inside.writes] == [(5,)]  # the sum, and not h
    assert {"mul", "sum"} <= set(inside.operators)
