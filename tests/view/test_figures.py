"""The graphs of the textbook and of its summary, drawn from networks that run: node for node, edge for edge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import leporello as lp
from tests.view.figures import SUMMARY, TEXTBOOK, figure, read

X = torch.zeros(2, 3)
FIGURES = SUMMARY | TEXTBOOK
SEQUENCE = torch.zeros(5, 2, 3)


class System(lp.Cell):
    """A system without input: s' = tanh(W s)."""

    def __init__(self) -> None:
        super().__init__(s=3)
        self.W = nn.Linear(3, 3)

    def forward(self, x: None, s: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.tanh(self.W(s))
        return s, s


class Head(nn.Module):
    """o = c + V h."""

    def __init__(self) -> None:
        super().__init__()
        self.V = nn.Linear(4, 2)

    def forward(self, h: Tensor) -> Tensor:
        return self.V(h)


def elman() -> lp.Loop:
    return lp.fold(lp.Elman(3, 4, 2), X, loss=mse_loss)


def jordan() -> lp.Loop:
    return lp.fold(lp.Jordan(3, 4, 2), X, loss=mse_loss)


def summary() -> lp.Loop:
    return lp.fold(lp.Summary(lp.RNN(3, 4), Head()), SEQUENCE, loss=mse_loss)


def forced() -> lp.Loop:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    return lp.fold(net, SEQUENCE, targets=torch.zeros(5, 2, 2), loss=mse_loss)


def free() -> lp.Loop:
    return lp.fold(lp.Jordan(3, 4, 2), X)


DRAWN: dict[str, Callable[[], str]] = {
    "a state through f": lambda: lp.fold(lp.GRU(3, 4), X).dot("function"),
    "a state through f, unfolded": lambda: lp.fold(lp.GRU(3, 4), X).unfold(3).dot("function"),
    "hidden units recur": lambda: elman().dot(),
    "the output recurs": lambda: jordan().dot(),
    "one output at the end": lambda: summary().unfold(4).dot(times="end", shown=(1, 1)),
    "forced by the teacher": lambda: forced().unfold(2).dot(ends=False),
    "running free": lambda: free().unfold(2).dot(ends=False),
    "10.1": lambda: lp.fold(System()).unfold(3).dot("function"),
    "10.2 folded": lambda: lp.fold(lp.Elman(3, 4, 2), X).dot("function"),
    "10.2 unfolded": lambda: lp.fold(lp.Elman(3, 4, 2), X).unfold(3).dot("function"),
    "10.3 folded": lambda: elman().dot(),
    "10.3 unfolded": lambda: elman().unfold(3).dot(),
    "10.4 folded": lambda: jordan().dot(),
    "10.4 unfolded": lambda: jordan().unfold(3).dot(),
    "10.5": lambda: summary().unfold(3).dot(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_drawing_is_the_figure(name: str) -> None:
    drawn, meant = read(DRAWN[name]()).figure(), FIGURES[name]
    assert drawn.nodes == meant.nodes
    assert drawn.edges == meant.edges


@pytest.mark.parametrize("name", [name for name, meant in FIGURES.items() if meant.dashed])
def test_what_the_figure_only_hints_at_is_dashed(name: str) -> None:
    assert read(DRAWN[name]()).figure().dashed == FIGURES[name].dashed


def test_the_gap_of_a_long_strip_is_dashed() -> None:
    drawn = read(DRAWN["one output at the end"]()).figure()
    assert sorted(drawn.dashed) == ["...", "h(...)", "x(...)"]


FOLDED = {
    "a state through f": {"h": 1},
    "hidden units recur": {"h": 1},
    "the output recurs": {"o": 1},
    "10.2 folded": {"h": 1},
    "10.3 folded": {"h": 1},
    "10.4 folded": {"o": 1},
}


@pytest.mark.parametrize("name", FOLDED)
def test_every_delay_of_a_folded_figure_has_one_square(name: str) -> None:
    graph = read(DRAWN[name]())
    behind: dict[str, int] = {}
    for square in graph.squares:
        source = graph.name(graph.source(square))
        behind[source] = behind.get(source, 0) + 1
    assert behind == FOLDED[name]


@pytest.mark.parametrize("name", [name for name in DRAWN if name not in FOLDED])
def test_an_unfolded_figure_has_no_square(name: str) -> None:
    assert not read(DRAWN[name]()).squares


def test_a_teacher_forced_net_has_its_square_behind_the_target() -> None:
    graph = read(forced().dot())
    (square,) = graph.squares
    assert graph.name(graph.source(square)) == "y"
    assert graph.figure() == figure("x h o L y", "x -> h U; h -> o V; o -> L; y -> L; y -> h W")


def test_a_time_delay_net_passes_through_the_same_squares() -> None:
    graph = read(lp.fold(lp.TimeDelay(3, 2, 3), X).dot())
    assert len(graph.squares) == 2
    assert sorted(graph.delay(source) for source, target, _ in graph.seen if graph.name(target) == "o") == [0, 1, 2]
    assert graph.figure() == figure("x o", "x -> o K; x -> o K; x -> o K")
