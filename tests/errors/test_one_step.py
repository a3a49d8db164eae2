"""A cell is one step: called with a whole sequence it says so, whoever wrote it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import leporello as lp
from leporello.errors import ArgumentError, NotOneStep
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, 3)
ADVICE = "wrap it in lp.Recurrent(cell) and call that with the sequence"

BUILT_IN = {
    "Elman": lambda: lp.Elman(3, 4, 2),
    "LSTM": lambda: lp.LSTM(3, 4),
    "TimeDelay": lambda: lp.TimeDelay(3, 2, window=3),
    "Perceptron": lambda: lp.Perceptron(3, 4, 2),
    "Stack": lambda: lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4)),
    "Recorded": lambda: lp.record(lp.GRU(3, 4)),
}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("given", [False, True], ids=["without state", "with state"])
def test_a_built_in_cell_called_with_a_sequence_says_that_it_is_one_step(name: str, given: bool) -> None:
    cell = BUILT_IN[name]()
    said(
        NotOneStep,
        lambda: cell(X, cell.initial_state(2) if given else None),
        f"{name} was called with a whole sequence; this is one step.",
        "came      an input float32 [5, 2, 3]",
        "expected  the input of one step, [batch, 3]",
        ADVICE,
    )


@pytest.mark.parametrize("sizes", [(5, 2, 3), (2, 2, 3), (1, 2, 3), (5, 1, 3)], ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["without state", "with state"])
def test_a_cell_of_ones_own_called_with_a_sequence_says_the_same(sizes: tuple[int, ...], given: bool) -> None:
    cell = steps.Good()
    said(
        NotOneStep,
        lambda: cell(torch.randn(sizes), cell.initial_state(sizes[1]) if given else None),
        "Good was called with a whole sequence; this is one step.",
        f"came      an input float32 {list(sizes)}",
        ADVICE,
    )


def test_so_does_a_cell_that_reads_classes() -> None:
    class Reads(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.rows = nn.Embedding(7, 4)

        def forward(self, x: Tensor, h: Tensor) -> Any:
            h = torch.tanh(self.rows(x) + h)
            return h, h

    said(NotOneStep, lambda: Reads()(torch.randint(7, (5, 2))), "came      an input int64 [5, 2]", ADVICE)
    assert Reads()(torch.randint(7, (2,)))[0].shape == (2, 4)


def test_so_does_a_cell_with_feedback() -> None:
    said(NotOneStep, lambda: lp.Feedback(lp.LSTM(5, 2))(X), "Feedback was called with a whole sequence", ADVICE)


@pytest.mark.parametrize("make", [lambda: lp.GRU(3, 4), steps.Good], ids=["built-in", "own"])
def test_a_packed_sequence_is_a_whole_sequence(make: Any) -> None:
    said(NotOneStep, lambda: make()(pack_sequence([X[:, 0]])), "came      a PackedSequence", ADVICE)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(3), ("the input of Elman has too few axes.", "came      float32 [3]", "x.unsqueeze(0)")),
        (torch.ones(2, 4), ("the input of Elman has the wrong number of features.", "came      float32 [2, 4]")),
        (None, ("Elman reads one tensor.", "came      None")),
    ],
    ids=["axes", "features", "nothing"],
)
def test_one_step_of_the_wrong_form_is_refused(x: Any, words: tuple[str, ...]) -> None:
    said(ArgumentError, lambda: lp.Elman(3, 4, 2)(x), *words, "expected  one step: [batch, 3]")


@pytest.mark.parametrize(
    "call",
    [lambda x: lp.Recurrent(lp.Elman(3, 4, 2)).step(x), lambda x: lp.fold(lp.Elman(3, 4, 2), x)],
    ids=["step", "fold"],
)
def test_where_one_step_is_asked_for_a_sequence_is_refused(call: Any) -> None:
    said(
        ArgumentError,
        lambda: call(X),
        "the argument 'x' has the wrong number of axes.",
        "came      float32 [5, 2, 3]",
        "expected  (batch, 3)",
        "one step has no length axis: inputs[0]",
    )
    said(ArgumentError, lambda: call(X[0, 0]), "came      float32 [3]", "x.unsqueeze(0) adds a batch axis")
    said(ArgumentError, lambda: call(torch.ones(2, 4)), "came      4 features: float32 [2, 4]")


def test_one_step_works_with_and_without_a_state() -> None:
    for cell in (steps.Good(), lp.Elman(3, 4, 2), lp.LSTM(3, 4)):
        output, state = cell(X[0])
        assert torch.equal(output, cell(X[0], cell.initial_state(2))[0])
        assert cell(X[1], state)[0].shape == output.shape
