"""The textbook's view of a step: which values are vertices, and what is read for what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.view.textbook_view import textbook_diagram
from tests.cells.examples import EXAMPLES
from tests.view.figures import lines, said, shown
from tests.view.function_cells import Written, X, drawn

CELLS = {
    "Elman": "x -> h: U; h -> h: W, 1 later; h -> o: V",
    "Jordan": "x -> h: U; o -> h: W, 1 later; h -> o: V",
    "ElmanJordan": "x -> h: U; h -> h: W, 1 later; o -> h: R, 1 later; h -> o: V",
    "RNN": "x -> h: U; h -> h: W, 1 later",
    "RNN identity": "x -> h: U; h -> h: W, 1 later",
    "GRU": "x -> h: U; h -> h: W, 1 later",
    "GRU without bias": "x -> h: U; h -> h: W, 1 later",
    "LSTM": "x -> a: U; h -> a: W, 1 later; a -> c; c -> c: 1 later; a -> h; c -> h",
    "LSTM with projection": "x -> a: U; h -> a: W, 1 later; a -> c; c -> c: 1 later; a -> h: P; c -> h: P",
    "LayerNormLSTM": "x -> from_x: U; h -> from_h: W, 1 later; from_x -> c; from_h -> c; c -> c: 1 later;"
    "from_x -> h; from_h -> h; c -> h",
    "PeepholeLSTM": "x -> c: U; h -> c: W, 1 later; c -> c: 1 later; x -> h: U; h -> h: W, 1 later; c -> h",
    "ZoneoutLSTM": "x -> new_c: U; h -> new_c: W, 1 later; c -> new_c: 1 later; new_c -> c; c -> c: 1 later;"
    "new_c -> h; x -> h: U; h -> h: W, 1 later",
    "IndRNN": "x -> h: U; h -> h: 1 later",
    "MinGRU": "x -> h: Wz, Wh; h -> h: 1 later",
    "Leaky": "x -> h: U; h -> h: W, 1 later; h -> o: V",
    "Leaky current": "x -> h: U; h -> h: W, 1 later; h -> r; r -> o: V",
    "Leaky learned": "x -> h: U; h -> h: W, mask, 1 later; h -> o: V",
    "LIF": "x -> v: U; v -> v: 1 later; z -> v: W, 1 later; v -> z",
    "LIF without recurrence": "x -> v: U; v -> v: 1 later; z -> v: 1 later; v -> z",
    "Perceptron": "x -> h: U; h -> o: V",
    "TimeDelay": "x -> o: K; x -> o: K, 1 later; x -> o: K, 2 later; x -> o: K, 3 later",
    "TimeDelay of two": "x -> o: K; x -> o: K, 1 later",
    "TimeDelay of one": "x -> o: K",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_built_in_cell_looks_like_its_equations(name: str) -> None:
    cell = EXAMPLES[name]()
    assert said(lp.fold(cell, torch.zeros(4, cell.inputs)).picture()) == lines(CELLS[name])


class FourStates(lp.Cell):
    """Four states in a row: each reads the one before it, and itself a step ago."""

    def __init__(self) -> None:
        super().__init__(a=3, b=3, c=3, d=3)
        self.A, self.B, self.C, self.D = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        a, b, c, d = state
        a = torch.tanh(self.A(x) + a)
        b = torch.tanh(self.B(a) * b)
        c = torch.tanh(self.C(b) + c)
        d = torch.tanh(self.D(c) - d)
        return d, (a, b, c, d)


def test_a_cell_of_four_states_has_four_delays() -> None:
    picture = lp.fold(FourStates(), X).picture()
    assert shown(picture) == ["x", "a", "b", "c", "d"]
    assert said(picture) == lines(
        "x -> a: A; a -> b: B; b -> c: C; c -> d: D; a -> a: 1 later; b -> b: 1 later; c -> c: 1 later; d -> d: 1 later"
    )


class WithLocals(lp.Cell):
    """e is read by a product, r feeds two values, q only one: q is no vertex."""

    def __init__(self) -> None:
        super().__init__(h=3)
        self.U, self.W, self.V, self.Q = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.relu(self.U(x))
        r = torch.sigmoid(self.W(h))
        q = torch.exp(h)
        h = torch.tanh(self.Q(e) + r * q)
        return self.V(h) * r, h


def test_a_local_is_drawn_where_a_product_reads_it_or_several_values_do() -> None:
    assert said(lp.fold(WithLocals(), X).picture()) == lines(
        "x -> e: U; e -> h: Q; h -> r: W, 1 later; h -> h: 1 later; r -> h; r -> o; h -> o: V"
    )


def test_a_product_with_a_gain_makes_no_vertex() -> None:
    class Gained(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Linear(3, 3)
            self.gain, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            s = torch.exp(x)
            h = torch.tanh(self.gain * s + self.W(h) + self.bias)
            return h, h

    assert said(lp.fold(Gained(), X).picture()) == lines("x -> h; h -> h: W, 1 later")


def test_a_state_that_no_step_changes_goes_round_by_itself() -> None:
    assert said(drawn(lambda m, x, k: (m.A(x * k), k), k=3)) == lines("x -> o: A; k -> o: A; k -> k: 1 later")


def test_two_states_that_swap_cross() -> None:
    swapped = drawn(lambda m, x, s: (m.A(x * s[0]), (s[1], s[0])), a=3, b=3)
    assert said(swapped) == lines("x -> o: A; a -> o: A; a -> b: 1 later; b -> a: 1 later")


def test_three_states_in_a_ring_are_a_ring() -> None:
    ring = drawn(lambda m, x, s: (x * s[0], (s[1], s[2], s[0])), a=3, b=3, c=3)
    assert said(ring) == lines("x -> o; a -> o; b -> a: 1 later; c -> b: 1 later; a -> c: 1 later")


def test_a_state_that_is_the_input_is_the_input_a_step_ago() -> None:
    assert said(drawn(lambda m, x, h: (m.A(x) - m.B(h), x), h=3)) == lines("x -> o: A; x -> o: B, 1 later")


def test_a_state_handed_on_twice_waits_for_two_steps() -> None:
    shifted = drawn(lambda m, x, s: (m.A(s[1]), (torch.tanh(x), s[0])), a=3, b=3)
    assert said(shifted) == lines("x -> a; a -> o: A, 2 later")


def test_an_output_that_is_the_input_is_the_input() -> None:
    def step(m: Written, x: Tensor, h: Tensor) -> Any:
        return x, torch.tanh(m.A(x) + m.B(h))

    picture = drawn(step, h=3)
    assert shown(picture) == ["x", "h"]
    assert said(picture) == lines("x -> h: A; h -> h: B, 1 later")


def test_an_output_that_is_the_state_before_the_step_reads_it_late() -> None:
    picture = drawn(lambda m, x, h: (h, torch.tanh(m.A(x) + m.B(h))), h=3)
    assert said(picture) == lines("x -> h: A; h -> h: B, 1 later; h -> o: 1 later")


def test_two_states_that_hand_on_one_value_are_one_vertex() -> None:
    def step(m: Written, x: Tensor, state: Any) -> Any:
        h = torch.tanh(m.A(state.a) + m.B(state.b) + x)
        return h, (h, h)

    assert said(drawn(step, a=3, b=3)) == lines("x -> a; a -> a: A, B, 1 later")


def test_a_state_that_reads_nothing_is_still_drawn() -> None:
    picture = drawn(lambda m, x, h: (m.A(h) + x, torch.zeros_like(h)), h=3)
    assert said(picture) == lines("x -> o; h -> o: A, 1 later")


def test_what_must_run_step_by_step_is_marked() -> None:
    view = textbook_diagram(lp.fold(lp.Elman(3, 5, 2), X))
    assert {str(vertex.name) for vertex in view.vertices if vertex.stepwise} == {"h"}
    assert {edge.names[0].base for edge in view.edges if edge.stepwise} == {"W"}
