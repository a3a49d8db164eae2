"""Names in pictures: short, those of the step's own variables, and no two alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.view.display_names import MAX_LETTERS, display_names
from tests.draw.large_cells import decoder, turing, zeros


def shown(*names: str) -> list[str]:
    return [str(name) for name in display_names(names).values()]


def spots(loop: lp.Loop, detail: Any = "textbook") -> list[str]:
    return [str(spot.name) for spot in loop.picture(detail).spots]


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("U.weight", "U"),
        ("weight", "weight"),
        ("weight_ih", "weight_ih"),
        ("rnn.weight_ih", "rnn_ih"),
        ("decoder.rnn.weight_hh_l0", "rnn_hh_l0"),
        ("cells.1.weight_ih", "cells_ih1"),
        ("attend.in_proj_weight", "in_proj"),
        ("net.2.weight", "net2"),
        ("state0.1", "state0,1"),
        ("state2", "state2"),
        ("layers.0.linear1.weight", "linear0,1"),
        ("3", "3"),
        ("decoder_hidden_attention_context", "decoder…context"),
        ("attention_rnn.bias_ih", "bias_ih"),
        ("x" * 40, "x" * 9 + "…" + "x" * 8),
    ],
)
def test_a_name_is_shown_without_what_goes_without_saying(name: str, look: str) -> None:
    assert shown(name) == [look]


def test_names_keep_as_much_of_their_path_as_tells_them_apart() -> None:
    assert shown("a.first.W.weight", "a.second.W.weight", "a.second.U.weight") == ["first.W", "second.W", "U"]


def test_short_names_keep_as_many_words_as_tell_them_apart() -> None:
    names = ["layer_one_projection_of_the_query", "layer_two_projection_of_the_query", "layer_query"]
    assert shown(*names) == ["layer_one…query", "layer_two…query", "layer_query"]


def test_no_short_name_is_longer_than_the_limit() -> None:
    assert all(len(name) <= MAX_LETTERS for name in shown("a_" * 30 + "b", "preactivation_nonlinearity", "q" * 19))


@pytest.mark.parametrize("detail", ["textbook", "operators"])
def test_leaves_of_nested_tuples_have_the_names_of_the_step(detail: Any) -> None:
    assert {"h", "c", "M", "w1", "w2"} <= set(spots(turing(), detail))


def test_a_long_name_is_shortened_and_told_in_full() -> None:
    picture = decoder().picture()
    told = {str(spot.name): spot.tooltip for spot in picture.spots}
    assert told["attention…cum"] == "state2.1: 7 values per row"
    assert told["decoder…context"] == "decoder_hidden_attention_context: 14 values per row"
    assert {"decoder_output", "gate_prediction"} <= set(told)
    assert "decoder_rnn.weight_ih" in {line.tooltip for line in picture.lines}


def test_matrices_that_are_long_together_are_counted() -> None:
    labels = {line.tooltip: line.label for line in decoder().picture().lines}
    assert labels["v.weight, location_conv.weight, location_dense.weight"] == "3 matrices"


def test_a_leaf_without_a_variable_has_the_arguments_name_with_indices() -> None:
    """The variables of a loop are those of its last round: they name no layer."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.LSTMCell(3, 3) for _ in range(2))

        def forward(self, x: Tensor, states: Any) -> tuple[Tensor, Any]:
            new = []
            for cell, before in zip(self.cells, states, strict=True):
                h, c = cell(x, before)
                x = h
                new.append((h, c))
            return x, new

    loop = lp.fold(Layers(), zeros(3), [(zeros(3), zeros(3))] * 2)
    assert {"states0,0", "states0,1", "states1,0", "states1,1"} <= set(spots(loop))


def test_what_a_step_unpacks_is_called_so_though_it_returns_another() -> None:
    def step(x: Any, state: Any) -> tuple[Tensor, Any]:
        left, right = x
        h, c = state
        new_c = torch.tanh(c + left)
        new_h = torch.tanh(h + right) * new_c
        return new_h, (new_h, new_c)

    loop = lp.fold(step, (zeros(3), zeros(3)), (zeros(3), zeros(3)))
    assert sorted(spots(loop)) == ["c", "h", "left", "right"]


def test_keys_and_fields_are_names_already() -> None:
    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        other = torch.tanh(state["h1"] + x)
        return other, {"h1": other}

    assert sorted(spots(lp.fold(step, zeros(3), {"h1": zeros(3)}))) == ["h1", "x"]
