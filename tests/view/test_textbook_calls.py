"""The textbook's view of a call: a loss, resets, lengths, targets, an output at the end alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.view.textbook_view import textbook_diagram
from tests.view.figures import lines, said
from tests.view.function_cells import X

SEQUENCE = torch.zeros(5, 2, 3)
NEVER = torch.zeros(5, 2, dtype=torch.bool)


def test_a_loss_reads_the_output_and_the_target() -> None:
    picture = lp.fold(lp.Elman(3, 5, 2), X, loss=mse_loss).picture()
    assert said(picture) == lines("x -> h: U; h -> h: W, 1 later; h -> o: V; o -> L; y -> L")
    assert [str(spot.name) for spot in picture.spots if spot.above] == ["y"]


@pytest.mark.parametrize(
    "options",
    [{"resets": NEVER}, {"lengths": torch.tensor([5, 2])}, {"resets": NEVER, "lengths": torch.tensor([5, 2])}],
)
def test_resets_and_lengths_leave_the_picture_as_it_is(options: dict[str, Tensor]) -> None:
    for cell in (lp.Elman(3, 5, 2), lp.LSTM(3, 5), lp.TimeDelay(3, 2, 3), lp.Elman(3, 5, 2, learned=True)):
        loop = lp.fold(lp.Recurrent(cell), SEQUENCE, **options)
        assert said(loop.picture()) == said(lp.fold(cell, X).picture())


def test_a_coin_puts_what_is_fed_back_between_output_and_target() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(net, SEQUENCE, targets=torch.zeros(5, 2, 2), forcing=NEVER)
    assert said(loop.picture()) == lines("x -> h: U; o' -> h: W, 1 later; h -> o: V; o -> o'; y -> o'")


def test_a_forced_net_reads_the_target_a_step_later() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(net, SEQUENCE, targets=torch.zeros(5, 2, 2))
    assert said(loop.picture()) == lines("x -> h: U; y -> h: W, 1 later; h -> o: V")


def test_a_target_fed_back_and_another_compared_with_are_two() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(
        net,
        SEQUENCE,
        targets=torch.zeros(5, 2, 2),
        loss=nn.functional.cross_entropy,
        target=torch.zeros(2, dtype=torch.int64),
    )
    picture = loop.picture()
    assert len({spot.id for spot in picture.spots}) == len(picture.spots)
    assert said(picture) == lines("x -> h: U; y -> h: W, 1 later; h -> o: V; o -> L; y' -> L")


def ended(loop: lp.Loop) -> set[str]:
    view = textbook_diagram(loop)
    return {str(vertex.name) for vertex in view.vertices if vertex.key in view.last_step_only}


def test_a_summary_asks_for_its_output_at_the_end_alone() -> None:
    head = nn.Linear(4, 2)
    assert ended(lp.fold(lp.Summary(lp.RNN(3, 4), head), SEQUENCE, loss=mse_loss)) == {"o", "L", "y"}
    assert ended(lp.fold(lp.Elman(3, 4, 2), X, loss=mse_loss)) == set()


def test_an_output_that_every_step_reads_does_not_stand_at_the_end_alone() -> None:
    loop = lp.fold(lp.ElmanJordan(3, 4, 2), X)
    apart = loop.replace(last_step_outputs=("o",))
    assert said(apart.unfold(3).picture(times="around")) == said(loop.unfold(3).picture())
