"""Whoever writes a call as for torch.nn is told what it is here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors.said import said

CASES = {
    "input_size": (
        lambda: lp.GRU(input_size=3, hidden_size=4),
        "lp.GRU(inputs=...)",
        "GRU(inputs, hidden, bias, learned)",
    ),
    "hidden_size": (lambda: lp.LSTM(3, hidden_size=4), "lp.LSTM(hidden=...)"),
    "proj_size": (lambda: lp.LSTM(3, 4, proj_size=2), "projection="),
    "num_layers": (lambda: lp.GRU(3, 4, num_layers=2), "lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4))"),
    "bidirectional": (lambda: lp.Recurrent(lp.GRU(3, 4), bidirectional=True), "lp.Bidirectional("),
    "dropout": (lambda: lp.GRU(3, 4, dropout=0.1), "lp.Stack(cell, cell, dropout=...)"),
    "batch_first": (lambda: lp.GRU(3, 4, batch_first=True), "lp.Recurrent(cell, batch_first=True)"),
    "device": (lambda: lp.GRU(3, 4, device="cpu"), "net.to(device)"),
    "hidden_size in a summary": (
        lambda: lp.Summary(lp.GRU(3, 4), nn.Identity(), hidden_size=4),
        "Recurrent(hidden_size",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_name_of_torch_is_answered_with_ours(name: str) -> None:
    make, *words = CASES[name]
    said(ArgumentError, make, f"the argument '{name.split()[0]}' is torch.nn's", *words)


def test_a_cell_that_takes_such_a_name_itself_is_made() -> None:
    class Mine(lp.Cell):
        def __init__(self, input_size: int, hidden_size: int, **options: Any) -> None:
            super().__init__(h=hidden_size)
            self.given = input_size, options

    assert Mine(input_size=3, hidden_size=4, num_layers=2).given == (3, {"num_layers": 2})
    assert lp.Cell(dropout=3).state_names() == ["dropout"]  # a leaf of the state may have any name


@pytest.mark.parametrize("cell", [lp.GRU(3, 4), lp.Cell(h=4)], ids=["built in", "another"])
def test_rows_of_unequal_length_are_told_how_to_be_packed(cell: lp.Cell) -> None:
    rows = [torch.zeros(5, 3), torch.zeros(4, 3)]
    said(
        ArgumentError,
        lambda: lp.Recurrent(cell)(rows),
        "torch.nn.utils.rnn.pack_sequence(inputs, enforce_sorted=False)",
    )
    packed = nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    assert lp.Recurrent(lp.GRU(3, 4))(packed)[0].batch_sizes.tolist() == [2, 2, 2, 2, 1]


def test_rows_of_one_length_are_told_how_to_be_stacked() -> None:
    said(ArgumentError, lambda: lp.Recurrent(lp.GRU(3, 4))([torch.zeros(5, 3)] * 2), "torch.stack(inputs, 1)")


def test_help_shows_the_arguments_of_a_class_though_it_refuses_names() -> None:
    assert list(inspect.signature(lp.Recurrent).parameters) == [
        "cell",
        "gradient",
        "engine",
        "batch_first",
        "batch_axis",
    ]
    assert list(inspect.signature(lp.GRU).parameters) == ["inputs", "hidden", "bias", "learned"]
    assert list(inspect.signature(lp.GRU(3, 4)).parameters)[:2] == ["x", "state"]
