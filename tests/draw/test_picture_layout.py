"""Layouts: nothing lies on anything else, whatever the cell; the texts' own figures have no crossing."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import leporello as lp
from leporello.draw.label_placement import place_labels
from leporello.draw.picture_layout import MARGIN, layout_picture
from leporello.draw.svg import svg
from leporello.draw.terminal import terminal
from tests.draw.geometry import crossings, faults
from tests.laws.examples import CELLS
from tests.nets.twins import thoroughly
from tests.random_cells import INPUTS, Program, cell_of, packed
from tests.random_programs import programs

X, S = torch.zeros(2, 3), torch.zeros(5, 2, 3)
MSE = nn.functional.mse_loss


class Four(lp.Cell):
    """Four states, each read by another."""

    def __init__(self) -> None:
        super().__init__(a=4, b=4, m=4, v=4)
        self.A, self.B, self.C, self.D = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        a, b, m, v = state
        a = torch.tanh(self.A(x) + self.B(a))
        b = torch.sigmoid(self.C(b) + a)
        m, v = 0.9 * m + 0.1 * a, 0.9 * v + 0.1 * b * b
        return self.D(torch.cat([m, v], -1)), (a, b, m, v)


class Wrapped(nn.Module):
    """A cell of torch's own, with long names."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, hc: Any) -> tuple[Tensor, Any]:
        h, c = self.cell(x, hc)
        return self.head(h), (h, c)


class Swap(lp.Cell):
    """Two states that change places."""

    def __init__(self) -> None:
        super().__init__(a=3, b=3)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        a, b = state
        return a + x, (b + x, a * x)


LOOPS = {
    "Elman": lambda: lp.fold(lp.Elman(3, 4, 2), X, loss=MSE),
    "Jordan": lambda: lp.fold(lp.Jordan(3, 4, 2), X, loss=MSE),
    "forced": lambda: lp.fold(lp.Recurrent(lp.Jordan(3, 4, 2)), S, targets=torch.zeros(5, 2, 2), loss=MSE),
    "mixed": lambda: lp.fold(lp.Recurrent(lp.Jordan(3, 4, 2)), S, targets=torch.zeros(5, 2, 2), forcing=0.5),
    "Summary": lambda: lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), S, loss=MSE),
    "ElmanJordan": lambda: lp.fold(lp.ElmanJordan(3, 4, 2), X),
    "LSTM": lambda: lp.fold(lp.LSTM(3, 4), X),
    "GRU": lambda: lp.fold(lp.GRU(3, 4), X),
    "LayerNormLSTM": lambda: lp.fold(lp.LayerNormLSTM(3, 4), X),
    "PeepholeLSTM": lambda: lp.fold(lp.PeepholeLSTM(3, 4), X),
    "ZoneoutLSTM": lambda: lp.fold(lp.ZoneoutLSTM(3, 4), X),
    "MinGRU": lambda: lp.fold(lp.MinGRU(3, 4), X),
    "Stack": lambda: lp.fold(lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 5)), X),
    "TimeDelay": lambda: lp.fold(lp.TimeDelay(3, 4, 3), X),
    "TimeDelay, wider": lambda: lp.fold(lp.TimeDelay(3, 2, 4), X),
    "Perceptron": lambda: lp.fold(lp.Perceptron(3, 4, 2), X),
    "Four": lambda: lp.fold(Four(), X),
    "Swap": lambda: lp.fold(Swap(), X),
    "Wrapped": lambda: lp.fold(Wrapped(), X, (torch.zeros(2, 4), torch.zeros(2, 4))),
}
SLOWEST = ("PeepholeLSTM", "ZoneoutLSTM", "LayerNormLSTM", "GRU", "MinGRU", "Stack", "ElmanJordan")  # drawn elsewhere
FIGURES = ["Elman", "Jordan", "forced", "Summary"]


def pictures(loop: lp.Loop) -> list[Any]:
    strip = loop.unfold(3)
    return [
        *(loop.picture(detail) for detail in ("textbook", "operators", "function")),
        *(strip.picture(detail) for detail in ("textbook", "operators", "function")),
        strip.picture(backward=True),
        loop.unfold(9).picture(),
        loop.unfold(6).picture(gradient=lp.Truncated(3)),
    ]


@pytest.mark.parametrize("name", [*(name for name in LOOPS if name not in SLOWEST), *thoroughly(*SLOWEST)])
def test_nothing_lies_on_anything_else(name: str) -> None:
    for picture in pictures(LOOPS[name]()):
        assert faults(layout_picture(picture)) == [], picture.title


def test_labels_side_by_side_do_not_read_as_one() -> None:
    """x goes to h and to new_c, through U both times."""
    found = [
        label.box
        for label in place_labels(layout_picture(LOOPS["ZoneoutLSTM"]().picture()))
        if label.routed.line.label == "U"
    ]
    assert len(found) == 2
    (_, top, right, bottom), other = sorted(found)
    assert other[0] - right >= 6 or other[1] >= bottom or top >= other[3]


def test_a_line_that_can_go_straight_has_no_kink() -> None:
    """V goes up past h to its product."""
    found = layout_picture(lp.fold(lp.Elman(3, 4, 2), X).picture("operators"))
    (way,) = (routed.path for routed in found.routed if routed.line.source.endswith(".V"))
    assert len(way) == 2


@pytest.mark.parametrize("detail", ["textbook", "operators", "function"])
def test_the_page_ends_where_the_drawing_does(detail: Any) -> None:
    """The first and the last column hint at a step, and may be narrower than one."""
    found = layout_picture(LOOPS["LSTM"]().unfold(3).picture(detail))
    assert min(placed.x - placed.half.x for placed in found.placed.values()) == MARGIN
    assert found.width - max(placed.x + placed.half.x for placed in found.placed.values()) == pytest.approx(MARGIN)


@pytest.mark.parametrize("name", ["Elman", "LSTM", "GRU", "PeepholeLSTM", "TimeDelay, wider"])
def test_gradients_of_operators_run_on_no_other_line(name: str) -> None:
    assert faults(layout_picture(LOOPS[name]().unfold(3).picture("operators", backward=True))) == []


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_texts_have_no_crossing(name: str) -> None:
    loop = LOOPS[name]()
    assert crossings(layout_picture(loop.picture())) == 0
    assert crossings(layout_picture(loop.unfold(3).picture())) == 0


def test_an_lstm_has_no_crossing_either() -> None:
    """Its memory runs along the top, where nothing passes it."""
    loop = LOOPS["LSTM"]()
    assert crossings(layout_picture(loop.picture())) == 0
    assert crossings(layout_picture(loop.unfold(3).picture())) == 0


@settings(max_examples=min(30, CELLS // 20), deadline=None, derandomize=True)
@given(programs(draws=False))
def test_any_cell_is_drawn_without_faults(program: Program) -> None:
    leaves = [
        torch.zeros(2, dtype=torch.long) if shape is None else torch.zeros(2, *shape, dtype=torch.float64)
        for shape in INPUTS[program.form].values()
    ]
    cell = cell_of(program)
    loop = lp.fold(cell, packed(program.form, leaves), cell.initial_state(2, dtype=torch.float64))
    for picture in (loop.picture(), loop.unfold(3).picture(), loop.unfold(2).picture(backward=True)):
        assert faults(layout_picture(picture)) == [], str(loop.text())
        assert bool(terminal(picture).strip()) == bool(picture.spots)


def test_a_hundred_steps_are_drawn_within_a_second() -> None:
    strip = LOOPS["LSTM"]().unfold(100)
    begin = time.perf_counter()
    drawn = svg(strip.picture())
    assert time.perf_counter() - begin < 1
    assert "… 94 steps …" in drawn
    assert drawn.count("<rect") < svg(strip.picture(whole=True)).count("<rect") / 10


def test_columns_are_alike() -> None:
    found = layout_picture(LOOPS["Four"]().unfold(3).picture())
    places: dict[str, set[tuple[float, float]]] = {}
    for placed in found.placed.values():
        offset = (round(placed.x - found.columns[placed.spot.column], 3), round(placed.y, 3))
        places.setdefault(placed.spot.place, set()).add(offset)
    assert all(len(offsets) == 1 for offsets in places.values())


def test_time_goes_from_left_to_right() -> None:
    found = layout_picture(LOOPS["Elman"]().unfold(3).picture())
    assert found.columns == sorted(found.columns)
    heights = {str(placed.spot.name): placed.y for placed in found.placed.values()}
    assert sorted(["x(t)", "h(t)", "o(t)", "L(t)", "y(t)"], key=heights.__getitem__) == [
        "y(t)",
        "L(t)",
        "o(t)",
        "h(t)",
        "x(t)",
    ]
