"""The textbook's view of a step: what vertices are called, and which matrices are written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import leporello as lp
from tests.view.figures import lines, said, shown
from tests.view.function_cells import Written, X, drawn


def test_biases_and_gains_are_not_written() -> None:
    written = " ".join(said(lp.fold(lp.LayerNormLSTM(3, 5), X).picture()))
    assert ("b" in written.split(), "gain" in written) == (False, False)


def test_more_than_three_matrices_are_counted_and_their_names_told() -> None:
    def step(m: Written, x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(m.A(x) * m.B(x) + m.C(x) * m.D(x) + m.E(h))
        return h, h

    picture = drawn(step, h=3)
    assert said(picture) == lines("x -> h: 4 matrices; h -> h: E, 1 later")
    assert {line.tooltip for line in picture.lines} == {"A.weight, B.weight, C.weight, D.weight", "E.weight"}


def test_three_matrices_are_written_in_the_order_of_the_step() -> None:
    def step(m: Written, x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(m.C(torch.relu(m.B(torch.relu(m.A(x))))) + m.E(h))
        return h, h

    assert said(drawn(step, h=3)) == lines("x -> h: A, B, C; h -> h: E, 1 later")


def test_a_stack_has_an_index_for_each_layer() -> None:
    loop = lp.fold(lp.Stack(lp.Elman(3, 5, 4), lp.Elman(4, 5, 2)), X)
    assert said(loop.picture()) == lines(
        "x -> h0: U0; h0 -> h0: W0, 1 later; h0 -> x1: V0; x1 -> h1: U1; h1 -> h1: W1, 1 later; h1 -> o: V1"
    )


def test_a_stack_of_lstms_keeps_the_states_of_its_layers_apart() -> None:
    layer = "h{0} -> a{0}: W{0}, 1 later; a{0} -> c{0}; c{0} -> c{0}: 1 later; a{0} -> h{0}; c{0} -> h{0};"
    loop = lp.fold(lp.Stack(lp.LSTM(3, 5), lp.LSTM(5, 5)), X)
    assert said(loop.picture()) == lines(f"x -> a0: U0; h0 -> a1: U1; {layer.format(0)} {layer.format(1)}")


def test_matrices_that_would_look_the_same_keep_their_dots() -> None:
    class Twice(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.first, self.second = nn.Module(), nn.Module()
            self.first.W, self.second.W, self.second.U = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.first.W(h) + self.second.W(self.second.U(x)))
            return h, h

    assert said(lp.fold(Twice(), X).picture()) == lines("x -> h: second.W, U; h -> h: first.W, 1 later")


def test_layers_of_a_sequential_are_indices() -> None:
    class Deep(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.net(torch.cat([x, h], -1)))
            return h, h

    assert said(lp.fold(Deep(), X).picture()) == lines("x -> [x, h]; h -> [x, h]: 1 later; [x, h] -> h: net0, net2")


def test_a_state_called_like_the_input_gets_a_prime() -> None:
    picture = lp.fold(Written(lambda m, x, h: (m.A(h), torch.tanh(m.B(h) + x)), x=3), X).picture()
    assert said(picture) == lines("x -> x'; x' -> x': B, 1 later; x' -> o: A, 1 later")


def test_an_input_called_like_a_state_or_an_output_is_another_vertex() -> None:
    def step(m: Written, x: Any, h: Tensor) -> Any:
        h = torch.tanh(x["state"]["h"] + x["output"]["o"] + m.A(h))
        return m.B(h), h

    picture = drawn(step, {"state": {"h": X}, "output": {"o": X}}, h=3)
    assert len({spot.id for spot in picture.spots}) == len(picture.spots) == 4
    assert len(set(shown(picture))) == 4


def test_inputs_in_a_dict_and_several_outputs_have_their_own_names() -> None:
    def step(m: Written, x: Any, h: Tensor) -> Any:
        h = torch.tanh(m.A(x["left"]) + m.B(h) + x["right"])
        return {"mean": m.C(h), "spread": h.exp()}, h

    picture = drawn(step, {"left": X, "right": X}, h=3)
    assert said(picture) == lines("left -> h: A; right -> h; h -> h: B, 1 later; h -> mean: C; h -> spread")


def test_an_input_called_y_is_an_input_where_there_is_no_loss() -> None:
    def step(m: Written, x: Any, h: Tensor) -> Any:
        h = torch.tanh(m.A(x["y"]) + m.B(h))
        return h, h

    loop = lp.fold(Written(step, h=3), {"y": X})
    for detail in ("textbook", "function"):
        (spot,) = (spot for spot in loop.picture(detail).spots if spot.name.base == "y")
        assert not spot.above


def test_the_sizes_of_values_are_told() -> None:
    picture = lp.fold(lp.Elman(3, 5, 2), X, loss=mse_loss).picture()
    told = {str(spot.name): spot.tooltip for spot in picture.spots}
    assert (told["x"], told["h"], told["L"]) == ("3 values per row", "5 values per row", "one value per row")
