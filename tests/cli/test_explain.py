"""`leporello explain`: one line about the cell, then what the network says itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import leporello as lp
from tests.cli.invoke import drawn, refused


def test_the_first_line_says_what_it_is() -> None:
    first = drawn("explain", "lstm:3,5").splitlines()[0]
    assert first == "LSTM: 200 parameters, state h [5], c [5]"


def test_the_rest_is_what_the_network_says() -> None:
    said = drawn("explain", "gru:3,5", "--length", 7, "--batch", 3)
    assert said.split("\n", 2)[2] == lp.Recurrent(lp.GRU(3, 5)).explain(torch.zeros(7, 3, 3))


def test_a_stack_is_named_from_above() -> None:
    first = drawn("explain", "lstm:3,5+gru:5,1").splitlines()[0]
    assert first.startswith("GRU on LSTM: ")
    assert "1.h [1]" in first


def test_a_cell_without_state_says_so() -> None:
    assert drawn("explain", "perceptron").splitlines()[0].endswith("no state")


def test_a_cell_of_ones_own_is_told_with_its_place(folder: Path) -> None:
    first = drawn("explain", "my_model:Leaky:3,5,1").splitlines()[0]
    assert first.startswith("Leaky (my_model.py, line 8): ")


def test_an_engine_can_be_named() -> None:
    assert "engine   reference (asked for by name)" in drawn("explain", "rnn", "--engine", "reference")


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    said = refused("explain", "rnn", "--engine", "warp")
    assert "'warp'" in said
    assert "reference" in said


@pytest.mark.parametrize("option", ["--length", "--batch"])
def test_counts_are_one_or_more(option: str) -> None:
    assert f"{option} is no count." in refused("explain", "rnn", option, 0)
    assert "1 steps" in drawn("explain", "rnn", "--length", 1, "--batch", 1)


def test_a_network_keeps_its_axes_and_its_engine(folder: Path) -> None:
    said = drawn("explain", "my_model:net", "--length", 7, "--batch", 3)
    assert "Jordan: 7 steps, batch 3" in said
    assert "engine of its own" in refused("explain", "my_model:net", "--engine", "reference")


def test_two_directions_are_explained_both(folder: Path) -> None:
    said = drawn("explain", "my_model:both", "--length", 7)
    assert said.splitlines()[0].startswith("Bidirectional: ")
    assert said.count("GRU: 7 steps") == 2


def test_several_networks_are_refused(folder: Path) -> None:
    assert "Layers is several networks." in refused("explain", "my_model:layers")


def test_a_system_without_input_is_explained(folder: Path) -> None:
    assert "Free: 7 steps, batch 3" in drawn("explain", "my_model:Free", "--input", "none", "--length", 7, "--batch", 3)
