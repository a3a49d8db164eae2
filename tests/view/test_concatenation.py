"""[x, h] W in the textbook view: a matrix for each piece where they are known, else one arrow from their join."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.draw.picture_layout import layout_picture
from tests.draw.geometry import faults
from tests.view.figures import lines, said

X = torch.zeros(2, 3)


class Pieces(lp.Cell):
    """[x, h] [W_xh; W_hh], as d2l writes it in section 9.4."""

    def __init__(self, way: str = "product") -> None:
        super().__init__(h=4)
        self.way = way
        self.W_xh, self.W_hh = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 4))
        self.W_hq, self.b_h = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([x, h], 1)
        if self.way == "product":
            h = torch.tanh(both @ torch.cat([self.W_xh, self.W_hh], 0) + self.b_h)
        elif self.way == "linear":
            h = torch.tanh(nn.functional.linear(both, torch.cat([self.W_xh.T, self.W_hh.T], 1), self.b_h))
        else:  # pieces of other sizes: which matrix belongs to which piece cannot be said
            h = torch.tanh(both @ torch.cat([self.W_hh, self.W_xh], 0) + self.b_h)
        o = h @ self.W_hq
        return o, h


class Whole(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.W = nn.Linear(7, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.W(torch.cat([x, h], -1)))
        return h, h


class Gates(lp.Cell):
    """Two products of one concatenation, one of whose pieces is no variable."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.Z, self.G = nn.Linear(7, 4), nn.Linear(7, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.sigmoid(self.Z(torch.cat([x, h], 1)))
        h = z * h + (1 - z) * torch.tanh(self.G(torch.cat([x, z * h], 1)))
        return h, h


@pytest.mark.parametrize("way", ["product", "linear"])
def test_each_piece_has_its_own_matrix(way: str) -> None:
    picture = lp.fold(Pieces(way), X).picture()
    assert {(line.source, line.target, line.label) for line in picture.lines} == {
        ("input.x", "state.h", "W_xh"),
        ("state.h", "state.h", "W_hh"),
        ("state.h", "output.o", "W_hq"),
    }


def test_where_pieces_do_not_fit_all_go_into_one() -> None:
    picture = lp.fold(Pieces("crossed"), X).picture()
    assert {(line.source, line.target, line.label) for line in picture.lines} == {
        ("input.x", "local.both", ""),
        ("state.h", "local.both", ""),
        ("local.both", "state.h", "W_xh, W_hh"),
        ("state.h", "output.o", "W_hq"),
    }


def test_one_matrix_multiplies_the_join() -> None:
    picture = lp.fold(Whole(), X).unfold(2).picture(ends=False)
    assert said(picture) == lines(
        "x(t-1) -> [x, h]; [x, h] -> h(t-1): W; h(t-1) -> [x, h]; x(t) -> [x, h]; [x, h] -> h(t): W"
    )
    folded = lp.fold(Whole(), X).picture()
    assert [line.delay for line in folded.lines if line.source == "state.h"] == [1]


def test_a_piece_without_a_variable_has_no_name_in_the_join() -> None:
    names = {str(spot.name) for spot in lp.fold(Gates(), X).picture().spots}
    assert {"[x, h]", "cat"} <= names


@pytest.mark.parametrize("cell", [Pieces(), Pieces("crossed"), Whole(), Gates()])
def test_nothing_lies_on_anything_else(cell: lp.Cell) -> None:
    loop = lp.fold(cell, X)
    assert faults(layout_picture(loop.picture())) == []
    assert faults(layout_picture(loop.unfold(3).picture(backward=True))) == []
