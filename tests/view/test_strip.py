"""Strips: columns and their times, what lies before, after and between, and the gradient's arrows against the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.draw.picture import Name, Picture
from leporello.errors import ArgumentError
from leporello.loop.unfold import Unfolding
from leporello.view.diagram import Diagram, Edge, Vertex
from leporello.view.drawable import Detail
from leporello.view.gradient_arrows import with_gradient
from leporello.view.strip import Strip, folded, unfolded
from tests.cells.examples import EXAMPLES, KINDS
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.nets.twins import quickly
from tests.random_cells import cell_of
from tests.view.figures import lines, said, shown

X = torch.zeros(2, 3)
SEQUENCE = torch.zeros(5, 2, 3)
DETAILS: tuple[Detail, ...] = ("textbook", "operators", "function")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"ends": False},
    {"times": "end"},
    {"whole": True},
    {"times": "around", "shown": (1, 2)},
]
LENGTHS = (1, 2, 3, 8, 100)

RECURRENT = Diagram(
    (Vertex("x", Name("x"), "input"), Vertex("h", Name("h"), "state")),
    (Edge("x", "h", (Name("U"),)), Edge("h", "h", (Name("W"),), delay=1)),
)
TAPPED = Diagram(
    (Vertex("x", Name("x"), "input"), Vertex("o", Name("o"))),
    (Edge("x", "o", (Name("K"),)), Edge("x", "o", (Name("K"),), delay=1), Edge("x", "o", (Name("K"),), delay=2)),
)


class Cutting:
    """A gradient method that cuts in front of some steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def crossing(self, length: int) -> list[float]:
        return [0.0 if step in self.steps else 1.0 for step in range(1, length + 1)]


def elman() -> lp.Loop:
    return lp.fold(lp.Elman(3, 4, 2), X)


def strip(view: Diagram, steps: int, **options: object) -> Picture:
    return unfolded(view, Strip.of(steps, bool(view.last_step_only), **options), "", "")  # type: ignore[arg-type]


def dashed(picture: Picture) -> list[str]:
    return [str(spot.name) for spot in picture.spots if spot.dashed]


def back(picture: Picture) -> Counter[str]:
    """The gradient's arrows."""
    return Counter({words: count for words, count in said(picture).items() if "~" in words})


def times(picture: Picture) -> list[str]:
    """As they are written from left to right."""
    found: dict[int, str] = {}
    for spot in picture.spots:
        found.setdefault(spot.column, spot.name.time)
    return [found[column] for column in sorted(found)]


def is_sound(picture: Picture) -> None:
    """Identifiers are unique, ends exist, and what runs forward runs in some order."""
    ids = [spot.id for spot in picture.spots]
    assert len(ids) == len(set(ids))
    assert {end for line in picture.lines for end in (line.source, line.target)} <= set(ids)
    waiting = {(line.source, line.target) for line in picture.lines if line.kind == "forward" and not line.delay}
    left = set(ids)
    while ready := left - {target for _, target in waiting}:
        left -= ready
        waiting = {(source, target) for source, target in waiting if source in left}
    assert not left


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, ["...", "t", "..."]),
        (2, ["...", "t-1", "t", "..."]),
        (3, ["...", "t-1", "t", "t+1", "..."]),
        (4, ["0", "1", "2", "3", "4"]),
        (7, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        (8, ["0", "1", "2", "3", "...", "6", "7", "8"]),
        (100, ["0", "1", "2", "3", "...", "98", "99", "100"]),
    ],
)
def test_short_strips_are_written_around_t_and_long_ones_numbered(steps: int, expected: list[str]) -> None:
    assert times(elman().unfold(steps).picture()) == expected


@pytest.mark.parametrize(
    ("way", "steps", "expected"),
    [
        ("around", 5, ["...", "t-2", "t-1", "t", "t+1", "t+2", "..."]),
        ("around", 4, ["...", "t-2", "t-1", "t", "t+1", "..."]),
        ("end", 3, ["...", "t-2", "t-1", "t"]),
        ("numbers", 2, ["0", "1", "2"]),
    ],
)
def test_times_are_written_as_asked(way: str, steps: int, expected: list[str]) -> None:
    assert times(elman().unfold(steps).picture(times=way)) == expected


def test_the_state_before_the_first_step_has_number_zero() -> None:
    picture = elman().unfold(4).picture()
    assert said(picture)["h(0) -> h(1): W"] == 1
    assert dashed(picture) == []


def test_without_ends_nothing_is_hinted_at() -> None:
    picture = elman().unfold(2).picture(ends=False)
    assert said(picture) == lines(
        "x(t-1) -> h(t-1): U; h(t-1) -> o(t-1): V; h(t-1) -> h(t): W; x(t) -> h(t): U; h(t) -> o(t): V"
    )


def test_ends_are_dashed() -> None:
    picture = strip(RECURRENT, 1)
    assert said(picture) == lines("h(...) -> h(t): W; x(t) -> h(t): U; h(t) -> h(...): W")
    assert dashed(picture) == ["h(...)", "h(...)"]


def test_a_step_without_delays_has_no_ends() -> None:
    picture = lp.fold(lp.Perceptron(3, 4, 2), X).unfold(2).picture()
    assert said(picture) == lines("x(t-1) -> h(t-1): U; h(t-1) -> o(t-1): V; x(t) -> h(t): U; h(t) -> o(t): V")
    assert picture.columns == 2


def test_a_strip_has_no_squares() -> None:
    assert not any(line.delay for line in strip(TAPPED, 3).lines)
    assert [line.delay for line in folded(TAPPED, "", "").lines] == [0, 1, 2]


def test_longer_delays_reach_further_back() -> None:
    assert said(strip(TAPPED, 3, times="numbers")) == lines(
        "x(...) -> o(1): K; x(1) -> o(1): K; x(...) -> o(2): K; x(1) -> o(2): K; x(2) -> o(2): K;"
        "x(1) -> o(3): K; x(2) -> o(3): K; x(3) -> o(3): K"
    )


def test_one_arrow_hints_at_what_comes_after() -> None:
    heard = said(strip(TAPPED, 2))
    assert [line for line in heard if line.startswith("x(t) ->")] == ["x(t) -> o(t): K", "x(t) -> o(...): K"]


def test_a_long_strip_has_a_gap_that_says_how_much_it_hides() -> None:
    picture = elman().unfold(100).picture()
    assert list(picture.captions.values()) == ["… 94 steps …"]
    (gap,) = picture.captions
    assert {str(spot.name) for spot in picture.spots if spot.column == gap} == {"x(...)", "h(...)", "o(...)"}
    assert dashed(picture) == ["x(...)", "h(...)", "o(...)"]
    heard = said(picture)
    assert heard["h(3) -> h(...): W"] == heard["h(...) -> h(98): W"] == 1


def test_the_whole_of_a_long_strip_is_drawn_where_it_is_asked_for() -> None:
    picture = elman().unfold(100).picture(whole=True)
    assert not picture.captions
    assert picture.columns == 101
    heard = said(picture)
    assert all(heard[f"h({step - 1}) -> h({step}): W"] == 1 for step in range(1, 101))


def test_as_many_first_and_last_steps_are_drawn_as_asked() -> None:
    picture = elman().unfold(9).picture(shown=(1, 2))
    assert times(picture) == ["0", "1", "...", "8", "9"]
    assert list(picture.captions.values()) == ["… 6 steps …"]
    assert times(elman().unfold(9).picture(shown=(5, 4))) == [str(step) for step in range(10)]


def test_delays_over_a_gap_begin_in_it() -> None:
    heard = said(strip(TAPPED, 10, shown=(1, 2)))
    assert heard["x(...) -> o(9): K"] == heard["x(...) -> o(10): K"] == heard["x(9) -> o(10): K"] == 1
    assert not any(line.startswith(("x(1) -> o(9)", "x(1) -> o(10)")) for line in heard)


def test_time_that_runs_backwards_has_its_sources_on_the_right() -> None:
    picture = strip(replace(RECURRENT, reverse=True), 2)
    column = {spot.id: spot.column for spot in picture.spots}
    assert all(column[line.source] >= column[line.target] for line in picture.lines)
    assert said(picture) == lines(
        "h(...) -> h(t): W; h(t) -> h(t-1): W; h(t-1) -> h(...): W; x(t) -> h(t): U; x(t-1) -> h(t-1): U"
    )
    is_sound(picture)


def test_a_strip_read_both_ways_begins_on_both_sides() -> None:
    both = Diagram(
        (Vertex("x", Name("x"), "input"), Vertex("a", Name("a"), "state"), Vertex("b", Name("b"), "state")),
        (Edge("x", "a"), Edge("x", "b"), Edge("a", "a", delay=1), Edge("b", "b", delay=1, reverse=True)),
    )
    read = "x(1) -> a(1); x(1) -> b(1); x(2) -> a(2); x(2) -> b(2);"
    picture = strip(both, 2, times="numbers")
    assert said(picture) == lines(f"{read} a(0) -> a(1); a(1) -> a(2); b(3) -> b(2); b(2) -> b(1)")
    is_sound(picture)
    hinted = strip(both, 1)
    assert said(hinted) == lines(
        "x(t) -> a(t); x(t) -> b(t); a(...) -> a(t); a(t) -> a(...); b(...) -> b(t); b(t) -> b(...)"
    )
    is_sound(hinted)


def test_what_is_asked_for_at_the_end_stands_in_the_last_column() -> None:
    loop = lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), SEQUENCE, loss=mse_loss)
    picture = loop.unfold(3).picture()
    assert [name for name in shown(picture) if name[0] in "oLy"] == ["y(t)", "o(t)", "L(t)"]
    assert times(picture) == ["...", "t-2", "t-1", "t"]
    assert [name for name in shown(loop.unfold(5).picture()) if name[0] in "oLy"] == ["y(5)", "o(5)", "L(5)"]


def test_one_place_stands_once_in_each_column() -> None:
    picture = lp.fold(lp.LSTM(3, 4), X).unfold(3).picture()
    assert max(Counter((spot.place, spot.column) for spot in picture.spots).values()) == 1


def test_gradients_run_against_the_arrows() -> None:
    picture = lp.fold(lp.Elman(3, 4, 2), X, loss=mse_loss).unfold(2).picture(ends=False, backward=True)
    assert back(picture) == lines("h(t) ~> h(t-1); o(t-1) ~> h(t-1); o(t) ~> h(t); L(t-1) ~> o(t-1); L(t) ~> o(t)")


def test_no_gradient_reaches_inputs_and_targets() -> None:
    picture = lp.fold(lp.Jordan(3, 4, 2), X, loss=mse_loss).unfold(3).picture(backward=True)
    ends = {picture.spot(line.target).name.base for line in picture.lines if line.kind == "gradient"}
    assert ends == {"h", "o"}


def test_only_what_the_loss_depends_on_has_a_gradient() -> None:
    loop = lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), SEQUENCE, loss=mse_loss)
    picture = loop.unfold(2).picture(backward=True)
    assert back(picture) == lines("L(t) ~> o(t); o(t) ~> h(t); h(t) ~> h(t-1); h(t-1) ~> h(...)")


def test_a_loss_is_known_by_its_place_and_not_by_its_letter() -> None:
    named_l = Diagram(
        (Vertex("input.x", Name("x"), "input"), Vertex("state.L", Name("L"), "state"), Vertex("output.o", Name("o"))),
        (Edge("input.x", "state.L"), Edge("state.L", "state.L", delay=1), Edge("state.L", "output.o")),
    )
    way = Strip.of(2, has_last_step_only=False, ends=False)
    picture = with_gradient(unfolded(named_l, way, "", ""), named_l, way, [1.0, 1.0])
    assert said(picture)["o(t) ~> L(t)"] == said(picture)["o(t-1) ~> L(t-1)"] == 1


def test_a_weight_of_zero_cuts_the_arrow_between_two_steps() -> None:
    picture = elman().unfold(5).picture(gradient=Cutting(3, 5))
    outputs = lines("; ".join(f"o({step}) ~> h({step})" for step in range(1, 6)))
    states = lines("h(1) ~> h(0); h(2) ~> h(1); h(3) ~/ h(2); h(4) ~> h(3); h(5) ~/ h(4)")
    assert back(picture) == outputs + states
    assert [picture.spot(f"state.h@{column}").name.time for column in picture.borders] == ["3", "5"]


def test_nothing_within_a_step_is_cut() -> None:
    picture = elman().unfold(3).picture(gradient=Cutting(1, 2, 3))
    cut = [line for line in picture.lines if line.kind == "cut"]
    assert {picture.spot(line.source).column - picture.spot(line.target).column for line in cut} == {1}
    assert said(picture)["o(t) ~> h(t)"] == 1


def test_an_arrow_over_two_steps_is_cut_by_either() -> None:
    view = Diagram((Vertex("h", Name("h"), "state"),), (Edge("h", "h", delay=2),))
    way = Strip.of(4, has_last_step_only=False, times="numbers")
    picture = with_gradient(unfolded(view, way, "", ""), view, way, [1.0, 1.0, 0.0, 1.0])
    assert back(picture) == lines("h(1) ~> h(...); h(2) ~> h(...); h(3) ~/ h(1); h(4) ~/ h(2)")


def test_full_back_propagation_cuts_nothing() -> None:
    picture = elman().unfold(5).picture(backward=True)
    assert not [line for line in picture.lines if line.kind == "cut"]
    assert picture.borders == ()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"times": "sideways"}, "times"),
        ({"shown": 3}, "shown"),
        ({"shown": (0, 3)}, "shown"),
        ({"shown": (1, 2, 3)}, "shown"),
        ({"detail": "novel"}, "detail"),
        ({"gradient": object()}, "gradient"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(options: dict[str, object], word: str) -> None:
    with pytest.raises(ArgumentError, match=f"'{word}'"):
        elman().unfold(3).picture(**options)  # type: ignore[arg-type]


QUICK = ("Elman", "Jordan", "LSTM", "ZoneoutLSTM", "Leaky", "Perceptron", "TimeDelay")


@pytest.mark.parametrize("name", quickly(KINDS, *QUICK))
def test_every_cell_is_drawn_in_every_detail_at_every_length(name: str) -> None:
    cell = EXAMPLES[name]()
    _is_drawn(lp.fold(cell, torch.zeros(4, cell.inputs)), DETAILS)


def _is_drawn(loop: lp.Loop, details: Iterable[Detail]) -> None:
    strips = [loop.unfold(steps) for steps in LENGTHS]
    for detail in details:
        is_sound(loop.picture(detail))
        for strip in strips:
            _is_drawn_whole_and_in_part(strip, detail)
        assert list(strips[-1].picture(detail).captions.values()) == ["… 94 steps …"]


def _is_drawn_whole_and_in_part(strip: Unfolding, detail: Detail) -> None:
    for options in OPTIONS:
        picture = strip.picture(detail, **options)
        is_sound(picture)
        assert not any(line.delay for line in picture.lines)
    swept = strip.picture(detail, backward=True)
    is_sound(swept)
    forward = {(line.source, line.target) for line in swept.lines if line.kind == "forward"}
    assert {(line.target, line.source) for line in swept.lines if line.kind == "gradient"} <= forward


@pytest.mark.timeout(3600)
@cells(0.03)
@given(cases())
def test_a_random_cell_is_drawn_in_every_detail_at_every_length(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    loop = lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options)
    _is_drawn(loop, DETAILS)
