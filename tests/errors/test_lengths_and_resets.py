"""Lengths and resets of the wrong kind, shape or range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors.said import said

X = torch.randn(5, 2, 3)


def net(**options: Any) -> lp.Recurrent:
    return lp.Recurrent(lp.GRU(3, 4), **options)


@pytest.mark.parametrize(
    ("lengths", "came"), [([0, 5], "0 in row 0"), ([5, -2], "-2 in row 1"), ([1, 6], "6 in row 1")], ids=str
)
@pytest.mark.parametrize("form", [list, torch.tensor, lambda values: torch.tensor(values, dtype=torch.int32)])
def test_lengths_out_of_range_are_refused_by_row(lengths: list[int], came: str, form: Any) -> None:
    said(
        ArgumentError,
        lambda: net()(X, lengths=form(lengths)),
        "the argument 'lengths' is out of range.",
        f"came      {came}",
        "expected  from 1 to 5, the length of the inputs",
    )


@pytest.mark.parametrize(
    ("lengths", "came"),
    [
        (torch.tensor([1.0, 2.0]), "float32 [2]"),
        ([1.0, 2.0], "float32 [2]"),
        (torch.tensor([True, False]), "bool [2]"),
        ("ab", "'ab'"),
        ([None, 1], "[None, 1]"),
        ([[1], 2], "[[1], 2]"),
    ],
    ids=repr,
)
def test_lengths_that_are_no_integers_are_refused(lengths: Any, came: str) -> None:
    said(
        ArgumentError,
        lambda: net()(X, lengths=lengths),
        "the argument 'lengths' holds no integers.",
        f"came      {came}",
        "expected  integers (2,): one length per row",
    )


@pytest.mark.parametrize(
    ("lengths", "came"),
    [([1, 2, 3], "int64 [3]"), (torch.ones(2, 1).long(), "int64 [2, 1]"), (5, "int64 []")],
    ids=repr,
)
def test_lengths_of_the_wrong_shape_are_refused(lengths: Any, came: str) -> None:
    said(ArgumentError, lambda: net()(X, lengths=lengths), "the argument 'lengths' has the wrong shape.", came)


def test_lengths_beside_a_packed_sequence_are_refused() -> None:
    packed = pack_sequence([X[:, 0], X[:3, 1]])
    said(ArgumentError, lambda: net()(packed, lengths=[5, 3]), "stands beside a PackedSequence", "leave out lengths=")


def test_a_packed_sequence_of_the_wrong_features_is_refused() -> None:
    packed = pack_sequence([torch.ones(5, 4), torch.ones(3, 4)])
    said(ArgumentError, lambda: net(batch_first=True)(packed), "came      4 features: float32 [5, 2, 4]")


@pytest.mark.parametrize(
    ("resets", "came", "remedy"),
    [
        (torch.zeros(5, 2), "float32 [5, 2]", "resets.bool()"),
        (torch.zeros(5, 2).long(), "int64 [5, 2]", "resets.bool()"),
        ([True, False], "[bool, bool]", "torch.as_tensor(resets, dtype=torch.bool)"),
        (True, "bool", "torch.as_tensor(resets, dtype=torch.bool)"),
    ],
    ids=["float", "integer", "list", "one"],
)
def test_resets_that_are_not_boolean_are_refused(resets: Any, came: str, remedy: str) -> None:
    said(
        ArgumentError,
        lambda: net()(X, resets=resets),
        "the argument 'resets' is not boolean.",
        f"came      {came}",
        "expected  bool (5, 2): (length, batch)",
        remedy,
    )


@pytest.mark.parametrize("sizes", [(2, 5), (5,), (2,), (5, 2, 1), (4, 2)], ids=str)
def test_resets_of_the_wrong_shape_are_refused(sizes: tuple[int, ...]) -> None:
    said(
        ArgumentError,
        lambda: net()(X, resets=torch.zeros(sizes, dtype=torch.bool)),
        "the argument 'resets' has the wrong shape.",
        f"came      bool {list(sizes)}",
        "expected  bool (5, 2): (length, batch)",
    )


def test_with_batch_first_resets_are_spoken_of_as_written() -> None:
    said(
        ArgumentError,
        lambda: net(batch_first=True)(X, resets=torch.zeros(2, 5, dtype=torch.bool)),
        "came      bool [2, 5]",
        "expected  bool (5, 2): (batch, length)",
    )


def test_in_one_step_the_argument_is_called_reset() -> None:
    said(
        ArgumentError,
        lambda: net().step(X[0], reset=torch.zeros(3, dtype=torch.bool)),
        "the argument 'reset' has the wrong shape.",
        "came      bool [3]",
        "expected  bool (2,): (batch,)",
    )
    said(
        ArgumentError,
        lambda: net().step(X[0], reset=torch.zeros(2)),
        "the argument 'reset' is not boolean.",
        "reset.bool()",
    )


@pytest.mark.parametrize("kind", ["Bidirectional", "Summary"])
def test_other_networks_check_the_same(kind: str) -> None:
    made = (
        lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4))
        if kind == "Bidirectional"
        else lp.Summary(lp.GRU(3, 4), torch.nn.Linear(4, 1))
    )
    said(ArgumentError, lambda: made(X, lengths=[1, 9]), "the argument 'lengths' is out of range.", "9 in row 1")
    said(ArgumentError, lambda: made(X, resets=torch.zeros(5, 2)), "the argument 'resets' is not boolean.")
