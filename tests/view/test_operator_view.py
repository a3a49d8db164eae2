"""The operators' view of a step: every operator once, variables and parameters in boxes, a point behind each delay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.draw.picture import Picture
from leporello.loop.graph import operator_name
from leporello.loop.own_gradients import without_own_gradients
from leporello.loop.value_classes import is_getitem, is_view
from leporello.view.diagram import unmasked_results
from leporello.view.operator_view import PASS_THROUGH, operator_diagram
from tests.cells.examples import EXAMPLES, KINDS
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of
from tests.view.figures import lines, said

X = torch.zeros(2, 3)
SEQUENCE = torch.zeros(5, 2, 3)
NEVER = torch.zeros(5, 2, dtype=torch.bool)


def view(cell: Any, x: Any = X) -> Picture:
    return lp.fold(cell, x).picture("operators")


def named(picture: Picture, shape: str) -> Counter[str]:
    return Counter(str(spot.name) for spot in picture.spots if spot.shape == shape)


def test_an_elman_net_operator_by_operator() -> None:
    picture = view(lp.Elman(3, 5, 2))
    assert named(picture, "box") == Counter(["x", "h", "o"])
    assert named(picture, "parameter") == Counter(["U", "W", "V", "b", "c"])
    assert named(picture, "operator") == Counter(["×", "×", "×", "+", "+", "+", "tanh"])
    assert named(picture, "point") == Counter(["h"])
    assert said(picture) == lines(
        "x -> ×; U -> ×; b -> +; × -> +; h -> ×; W -> ×; + -> +; × -> +; + -> tanh; tanh -> h; h -> h: 1 later;"
    ) + lines("h -> ×; V -> ×; c -> +; × -> +; + -> o")


def test_the_gates_of_an_lstm() -> None:
    picture = view(lp.LSTM(3, 5))
    assert named(picture, "operator") == Counter({"×": 2, "+": 4, "σ": 3, "tanh": 2, "·": 3})
    assert named(picture, "box") == Counter(["x", "h", "c"])
    assert named(picture, "point") == Counter(["h", "c"])


def test_what_is_taken_from_a_number_has_that_number() -> None:
    class From(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = (2 - h) * x + (1.0 - x)
            return h, h

    assert named(view(From()), "operator") == Counter(["2−", "1−", "·", "+"])


def test_a_cell_of_torch_shows_its_gates_and_no_splitting() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRUCell(3, 5)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.gru(x, h)
            return h, h

    picture = lp.fold(Wrapped(), X, torch.zeros(2, 5)).picture("operators")
    assert {"σ", "tanh", "×", "·", "+"} <= set(named(picture, "operator")) <= {"σ", "tanh", "×", "·", "+", "−", "1−"}


def test_gates_are_told_by_their_names() -> None:
    told = {spot.tooltip: str(spot.name) for spot in view(lp.LSTM(3, 5)).spots if spot.shape == "operator"}
    assert (told["i"], told["f"], told["g"], told["o"]) == ("σ", "σ", "tanh", "σ")


def test_a_sum_with_a_product_is_two_operators() -> None:
    class Sum(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Linear(3, 3)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.W(h)
            return h, h

    assert said(view(Sum())) == lines("h -> ×; W -> ×; × -> +; bias -> +; + -> h; h -> h: 1 later")


def test_a_sum_with_a_product_of_the_same_value_reads_it_twice() -> None:
    class Same(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Parameter(torch.zeros(3, 3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.addmm(h, h, self.W)
            return h, h

    assert said(view(Same())) == lines("h -> ×; W -> ×; × -> +; h -> +; + -> h; h -> h: 1 later")


def test_looking_at_a_value_another_way_is_no_operator() -> None:
    words = {str(spot.name) for spot in view(lp.GRU(3, 5)).spots}
    assert not words & {"t", "view", "chunk", "split", "slice", "getitem", "expand", "transpose"}


@pytest.mark.parametrize("name", KINDS)
def test_every_built_in_cell_has_all_its_operators(name: str) -> None:
    cell = EXAMPLES[name]()
    loop = lp.fold(cell, torch.zeros(4, cell.inputs))
    _has_all_operators(loop)
    parameters = {spot.place for spot in loop.picture("operators").spots if spot.shape == "parameter"}
    assert parameters == {f"invariant.{port.name}" for port in loop.inputs if port.kind == "invariant"}


def _has_all_operators(loop: lp.Loop) -> None:
    """Every operator that a result depends on is there, and no other; not those of a gradient of the step's own."""
    loop = without_own_gradients(loop)
    keys = {spot.place for spot in loop.picture("operators").spots if spot.shape == "operator"}
    asked = zip(loop.outputs, unmasked_results(loop), strict=True)
    waiting = [node for port, node in asked if not port.name.startswith("call.final.")]
    needed = set()
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    meant = set()
    for node in needed:
        if not (is_view(node) or is_getitem(node) or operator_name(node) in PASS_THROUGH):
            meant.add(f"operator.{node.name}")
            if operator_name(node) in ("addmm", "baddbmm"):
                meant.add(f"operator.{node.name}.product")
    assert keys == meant


def test_states_that_only_change_places_are_points_that_feed_each_other() -> None:
    class Ring(lp.Cell):
        def __init__(self) -> None:
            super().__init__(a=3, b=3, c=3)

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            a, b, c = state
            return x * a, (b, c, a)

    assert said(view(Ring())) == lines("x -> ·; a -> ·; · -> o; b -> a: 1 later; c -> b: 1 later; a -> c: 1 later")


def test_an_output_that_is_the_state_before_the_step_has_a_box_behind_the_point() -> None:
    class Before(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return h, torch.tanh(h + x)

    picture = view(Before())
    assert said(picture) == lines("h -> o; h -> +; x -> +; + -> tanh; tanh -> h; h -> h: 1 later")
    assert named(picture, "box") == Counter(["x", "h", "o"])


def test_the_names_of_a_state_agree_at_its_box_and_at_its_point() -> None:
    picture = view(lp.Stack(lp.LSTM(3, 5), lp.LSTM(5, 5)))
    assert named(picture, "point") == Counter(["h0", "c0", "h1", "c1"])
    assert named(picture, "box") == Counter(["x", "h0", "c0", "h1", "c1"])
    assert named(picture, "parameter") == Counter([name + layer for name in "UWbc" for layer in "01"])


def test_a_time_delay_net_has_a_point_for_every_delay() -> None:
    loop = lp.fold(lp.TimeDelay(3, 2, 3), X)
    waits = {(edge.source, edge.delay): edge.target for edge in operator_diagram(loop).edges if edge.delay}
    assert set(waits) == {("sequence.x", 1), ("sequence.x", 2)}
    assert all(target.startswith("point.") for target in waits.values())


def test_a_reset_is_an_operator_before_the_first_reader() -> None:
    picture = lp.fold(lp.Recurrent(lp.Elman(3, 5, 2)), SEQUENCE, resets=NEVER).picture("operators")
    heard = said(picture)
    assert heard["h -> masked fill"] == heard["reset -> masked fill"] == heard["masked fill -> ×"] == 1


def test_what_only_holds_a_row_past_its_end_is_left_out() -> None:
    loop = lp.fold(lp.Recurrent(lp.Elman(3, 5, 2)), SEQUENCE, lengths=torch.tensor([5, 2]))
    assert said(loop.picture("operators")) - said(view(lp.Elman(3, 5, 2))) == lines(
        "past -> where; first.x -> where; x -> where; where -> ×"
    )


def test_a_coin_chooses_between_output_and_target() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(net, SEQUENCE, targets=torch.zeros(5, 2, 2), forcing=NEVER)
    heard = said(loop.picture("operators"))
    assert heard["coin -> where"] == heard["y -> where"] == heard["o -> where"] == heard["where -> o"] == 1


def test_a_target_stands_above() -> None:
    picture = lp.fold(lp.Elman(3, 5, 2), X, loss=mse_loss).picture("operators")
    assert [str(spot.name) for spot in picture.spots if spot.above] == ["y"]


def test_the_head_of_a_summary_stands_at_the_end_alone() -> None:
    loop = lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), SEQUENCE)
    strip = loop.unfold(3).picture("operators")
    placed = Counter(str(spot.name) for spot in strip.spots)
    assert placed["o(t)"] == 1
    assert not {name for name in placed if name.startswith("o(") and name != "o(t)"}
    assert placed["head"] == 1  # its matrix, once
    assert placed["U"] == placed["W"] == 3


@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases())
def test_a_random_cell_has_all_its_operators(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    loop = lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options)
    _has_all_operators(loop)
    diagram = operator_diagram(loop)
    keys = [vertex.key for vertex in diagram.vertices]
    assert len(keys) == len(set(keys))
    assert {end for edge in diagram.edges for end in (edge.source, edge.target)} <= set(keys)
    read = {edge.target for edge in diagram.edges}
    points = {vertex.key for vertex in diagram.vertices if vertex.shape == "point"}
    assert points <= read  # nothing leaves a delay that did not enter it
