"""Drawings in the terminal: box characters, columns that line up, nothing lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.draw.picture import Line, Name, Picture, Spot
from leporello.draw.terminal import terminal
from leporello.text_table import display_width

X = torch.zeros(2, 3)


def test_a_loop_has_its_square() -> None:
    assert str(lp.fold(lp.RNN(3, 4), X)) == ("╭───╮────╮\n│ h │    ■\n╰───╯◀─W─╯\n  ▲\n U│\n╭───╮\n│ x │\n╰───╯\n")


def test_a_strip_has_a_column_per_step() -> None:
    assert str(lp.fold(lp.RNN(3, 4), X).unfold(2)) == (
        "╭┄┄┄┄┄┄┄┄┄╮    ╭─────────╮    ╭───────╮    ╭┄┄┄┄┄┄┄┄┄╮\n"
        "┆  h(...) ┆─W─▶│  h(t-1) │─W─▶│  h(t) │─W─▶┆  h(...) ┆\n"
        "╰┄┄┄┄┄┄┄┄┄╯    ╰─────────╯    ╰───────╯    ╰┄┄┄┄┄┄┄┄┄╯\n"
        "                    ▲             ▲\n"
        "                   U│            U│\n"
        "               ╭─────────╮    ╭───────╮\n"
        "               │  x(t-1) │    │  x(t) │\n"
        "               ╰─────────╯    ╰───────╯\n"
    )


def test_gradients_have_arrowheads_of_their_own() -> None:
    drawn = terminal(lp.fold(lp.RNN(3, 4), X).unfold(2).picture(backward=True))
    assert drawn.count("◁") == 3
    assert drawn.count("▶") == 3


def test_a_cut_gradient_is_crossed_out() -> None:
    drawn = terminal(lp.fold(lp.RNN(3, 4), X).unfold(4).picture(gradient=lp.Truncated(2)))
    assert drawn.count("╳") == 2


@pytest.mark.parametrize("detail", ["textbook", "operators", "function"])
def test_every_name_and_every_matrix_is_there(detail: str) -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), X, loss=nn.functional.mse_loss)
    drawn = terminal(loop.picture(detail))  # type: ignore[arg-type]
    wanted = {"textbook": "xhoLyUVW", "operators": "xhoLyUVWbc", "function": "xhf"}[detail]
    assert set(wanted) <= set(drawn)


def test_a_label_breaks_no_corner_and_no_crossing() -> None:
    strip = lp.fold(lp.ZoneoutLSTM(3, 4), X).unfold(3)
    assert str(strip).count("W") == 8
    rows = str(strip).split("\n")
    for y, row in enumerate(rows[:-1]):
        for x, letter in enumerate(row):
            if letter == "W":
                above = rows[y - 1][x : x + 1]
                assert above not in ("│", "├", "┼", "╭", "╮"), row


def test_wide_letters_take_two_columns() -> None:
    class Wide(lp.Cell):
        def __init__(self) -> None:
            super().__init__(状态=3)

        def forward(self, x: Tensor, 状态: Tensor) -> tuple[Tensor, Tensor]:
            状态 = torch.tanh(x + 状态)
            return 状态, 状态

    top, middle, bottom = str(lp.fold(Wide(), X)).split("\n")[:3]
    assert middle.startswith(("│ 状态 │", "│  状态 │"))
    assert (
        display_width(middle.split("■")[0].rstrip())
        == display_width(top.split("╮")[0]) + 1
        == display_width(bottom.split("╯")[0]) + 1
    )


def test_names_with_line_breaks_stay_on_one_line() -> None:
    spots = (Spot("1", Name("a\nb"), "1"), Spot("2", Name("c"), "2"))
    drawn = terminal(Picture("", "", spots, (Line("1", "2", (Name("d\te"),)),)))
    assert "a b" in drawn
    assert "d e" in drawn


def test_a_long_strip_says_what_it_leaves_out() -> None:
    assert str(lp.fold(lp.RNN(3, 4), X).unfold(100)).rstrip().endswith("… 94 steps …")


def test_a_picture_of_nothing_is_empty() -> None:
    assert terminal(Picture("", "", (), ())) == ""
