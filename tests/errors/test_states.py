"""States that are missing, or come in another structure, shape or dtype than the cell's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError, MissingState, StateMismatch
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, 3)
zeros = torch.zeros


class PlainModule(nn.Module):
    """A step that declares no state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRUCell(3, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.inner(x, h)
        return h, h


def decay(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return h, 0.5 * h + x.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("cell", "place"),
    [(PlainModule(), "PlainModule (test_states.py, line"), (decay, "decay (test_states.py, line")],
    ids=["module", "function"],
)
def test_a_cell_that_declares_no_state_needs_one(cell: Any, place: str) -> None:
    net = lp.Recurrent(cell)
    for call in (lambda: net(X), lambda: net.step(X[0]), lambda: net.explain(X), lambda: lp.fold(cell, X[0])):
        said(
            MissingState,
            call,
            "this cell declares no initial state.",
            place,
            "expected  the argument 'state'",
            "derive the cell from lp.Cell",
        )
    said(MissingState, lambda: net.initial_state(2), place)


@pytest.mark.parametrize(
    ("state", "came"),
    [
        (zeros(2, 4), "float32 [2, 4]"),
        ((zeros(2, 4),), "(float32 [2, 4],)"),
        ({"h": zeros(2, 4), "c": zeros(2, 4)}, "{h: float32 [2, 4], c: float32 [2, 4]}"),
        ((), "()"),
    ],
    ids=["one leaf", "tuple of one", "dict", "none"],
)
def test_a_state_of_another_structure_is_refused(state: Any, came: str) -> None:
    said(
        StateMismatch,
        lambda: lp.Recurrent(lp.LSTM(3, 4))(X, state),
        "the argument 'state' has another structure than the cell's state.",
        f"came      {came}",
        "expected  (h: float32 [2, 4], c: float32 [2, 4])",
        "net.initial_state(batch)",
    )


def test_a_plain_tuple_or_list_passes_for_the_named_one() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4))
    for state in ((zeros(2, 4), zeros(2, 4)), [zeros(2, 4), zeros(2, 4)]):
        assert torch.equal(net(X, state)[0], net(X)[0])


@pytest.mark.parametrize(
    ("leaf", "wrong", "came"),
    [
        (zeros(3, 4), "has the wrong shape", "float32 [3, 4]"),
        (zeros(1, 4), "has the wrong shape", "float32 [1, 4]"),
        (zeros(2, 5), "has the wrong shape", "float32 [2, 5]"),
        (zeros(1, 2, 4), "has the wrong shape", "float32 [1, 2, 4]"),
        (zeros(4), "has the wrong shape", "float32 [4]"),
        (zeros(2, 4).long(), "has the wrong dtype", "int64 [2, 4]"),
        (0, "is no tensor", "int"),
        (None, "is no tensor", "None"),
    ],
    ids=["batch", "batch 1", "features", "layers", "no batch", "integers", "number", "None"],
)
def test_a_leaf_unlike_the_cells_is_refused_by_name(leaf: Any, wrong: str, came: str) -> None:
    said(
        StateMismatch,
        lambda: lp.Recurrent(lp.LSTM(3, 4))(X, (zeros(2, 4), leaf)),
        f"the state 'c' {wrong}.",
        f"came      {came}",
        "expected  float32 [2, 4]",
        "LSTM (torch_cells.py, line",
    )


def test_a_state_of_another_floating_dtype_is_refused_where_it_meets_the_parameters() -> None:
    said(
        ArgumentError,
        lambda: lp.Recurrent(lp.Elman(3, 4, 2))(X, zeros(2, 4).double()),
        "state   h float64 [batch, 4]",
        "to have the same dtype",
    )


@pytest.mark.parametrize(
    ("state", "name", "wrong"),
    [
        (zeros(()), "h", "has no batch axis"),
        ((zeros(2, 4), zeros(())), "h1", "has no batch axis"),
        ({"a": zeros(2, 4), "b": zeros(4)}, "b", "has another batch than the call"),
        (zeros(3, 4), "h", "has another batch than the call"),
        (0.0, "h", "is no tensor"),
    ],
    ids=["scalar", "in a tuple", "in a dict", "other batch", "number"],
)
def test_a_leaf_without_the_calls_batch_is_refused_by_name_for_any_step(state: Any, name: str, wrong: str) -> None:
    net = lp.Recurrent(decay)
    net(X, zeros(2, 4))  # a trace that is there already does not hide it
    said(StateMismatch, lambda: net(X, state), f"the state '{name}' {wrong}.", "[2, ...]")


def test_an_initial_state_without_a_batch_axis_is_refused() -> None:
    class Bare(steps.Good):
        def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
            return zeros(4)

    said(
        StateMismatch, lambda: lp.Recurrent(Bare())(X), "the state 'h' has another batch than the call.", "float32 [4]"
    )


def test_an_initial_state_of_other_leaves_than_declared_is_refused() -> None:
    class Two(steps.Good):
        def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Any:
            return zeros(batch, 4), zeros(batch, 4)

    said(StateMismatch, lambda: lp.Recurrent(Two())(X), "initial_state gives other leaves than the cell declares.", "h")


def test_an_initial_state_that_takes_no_device_is_refused() -> None:
    class Short(steps.Good):
        def initial_state(self, batch: int) -> Tensor:  # type: ignore[override]
            return zeros(batch, 4)

    said(ArgumentError, lambda: lp.Recurrent(Short())(X), "initial_state does not take a device and a dtype.", "Short")


def test_a_stack_says_how_its_state_is_nested() -> None:
    net = lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.LSTM(4, 4)))
    said(
        StateMismatch,
        lambda: net(X, (zeros(2, 4), zeros(2, 4))),
        "Stack of GRU (torch_cells.py, line",
        "expected  (float32 [2, 4], (h: float32 [2, 4], c: float32 [2, 4]))",
    )
    said(
        StateMismatch,
        lambda: net(X, (zeros(2, 4), (zeros(2, 4), zeros(2, 5)))),
        "the state '1.c' has the wrong shape.",
    )
