"""What instruments refuse, and the words for it; the net works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.analysis import fixed_points, gradient_flow, jacobians, lyapunov, reach, terms
from leporello.errors import ArgumentError, RowsMeet
from tests.analysis.nets import example, linear, normal, orthogonal
from tests.errors.said import said


def square(output: Tensor) -> Tensor:
    return output.square().sum(-1)


ALL: dict[str, Callable[[Any, Any], object]] = {
    "gradient_flow": lambda net, inputs: gradient_flow(net, inputs, square),
    "reach": reach,
    "jacobians": jacobians,
    "lyapunov": lyapunov,
    "terms": lambda net, inputs: terms(net, inputs, 1),
}


class Meeting(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=3)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h - h.mean(0))
        return h, h


class Tokens(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.table = nn.Embedding(5, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.table(x) + h)
        return h, h


class Counter(lp.Cell):
    def __init__(self) -> None:
        super().__init__(n=1)

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.zeros(batch, 1, dtype=torch.int64)

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x * n, n + 1


@pytest.mark.parametrize("name", ALL)
def test_a_net_that_is_none(name: str) -> None:
    for net in (lp.GRU(3, 4), nn.GRU(3, 4), lp.Summary(lp.GRU(3, 4), nn.Linear(4, 2)), lp.Recurrent):
        said(
            ArgumentError,
            lambda net=net: ALL[name](net, normal(4, 2, 3)),
            "no network to look into",
            "lp.Recurrent(cell)",
        )


@pytest.mark.parametrize("name", ALL)
def test_inputs_of_the_wrong_shape(name: str) -> None:
    net = example("GRU")
    said(ArgumentError, lambda: ALL[name](net, normal(4, 2, 7)), "wrong number of features", "3 features")
    said(ArgumentError, lambda: ALL[name](net, normal(4, 3)), "wrong number of axes", "(length, batch, 3)")
    assert net(normal(4, 2, 3))[0].shape == (4, 2, 5)


@pytest.mark.parametrize("name", [name for name in ALL if name != "reach"])
def test_no_floating_state(name: str) -> None:
    for net in (example("Perceptron"), example("TimeDelay of one")):
        said(ArgumentError, lambda net=net: ALL[name](net, normal(4, 2, 3)), "hands no floating state", "no state")
    said(ArgumentError, lambda: ALL[name](lp.Recurrent(Counter()), normal(4, 2, 1)), "n: int64 [rows, 1]")


@pytest.mark.parametrize("name", ALL)
def test_rows_that_meet(name: str) -> None:
    said(RowsMeet, lambda: ALL[name](lp.Recurrent(Meeting()), normal(4, 2, 3)), "no gradient is a row's own")


@pytest.mark.parametrize(
    ("loss", "came"),
    [
        (lambda output: output.square().mean(), "float64 []"),
        (lambda output: output.square().sum(0), "float64 [5]"),
        (lambda output: 3.0, "float"),
        (lambda output: None, "None"),
        (lambda output: output.sum(-1) + 1j, "complex128 [2]"),
    ],
)
def test_a_loss_that_gives_no_number_per_row(loss: Any, came: str) -> None:
    said(ArgumentError, lambda: gradient_flow(example("GRU"), normal(4, 2, 3), loss), "no number per row", came, "[2]")


def test_a_loss_that_fails_says_how() -> None:
    net, inputs = example("GRU"), normal(4, 2, 3)
    words = ("fails on one step's output.", "TypeError", "float64 [2, 5]", "targets=")
    said(ArgumentError, lambda: gradient_flow(net, inputs, nn.functional.mse_loss), *words)
    said(
        ArgumentError,
        lambda: gradient_flow(net, inputs, lambda o, y: o + y, targets=normal(4, 2, 3)),
        "fails on one step's output and target.",
        "RuntimeError",
    )
    said(ArgumentError, lambda: gradient_flow(net, inputs, 3), "is no function", "int")


def test_targets_of_another_length() -> None:
    net, inputs = example("GRU"), normal(4, 2, 3)
    call = lambda targets: gradient_flow(net, inputs, nn.functional.mse_loss, targets=targets)  # noqa: E731
    said(ArgumentError, lambda: call(normal(3, 2, 5)), "'targets' has the wrong shape", "(4, 2, ...)", "[3, 2, 5]")
    said(ArgumentError, lambda: call([1, 2]), "'targets' has the wrong shape", "int")


@pytest.mark.parametrize("t", [0, 5, -1, 2.0, True])
def test_a_t_out_of_range(t: Any) -> None:
    said(
        ArgumentError, lambda: terms(example("GRU"), normal(4, 2, 3), t), "'t' is out of range", "from 1 to 4", repr(t)
    )


def test_other_numbers_out_of_range() -> None:
    net, inputs = example("GRU"), normal(4, 2, 3)
    said(ArgumentError, lambda: terms(net, inputs, 2, row=2), "'row' is out of range", "from 0 to 1")
    said(ArgumentError, lambda: lyapunov(net, inputs, count=6), "'count' is out of range", "from 1 to 5")
    said(ArgumentError, lambda: lyapunov(net, inputs, skip=4), "'skip' is out of range", "from 0 to 3")


def test_parameters_that_the_step_does_not_read() -> None:
    net, inputs = example("GRU"), normal(4, 2, 3)
    said(ArgumentError, lambda: terms(net, inputs, 2, parameters=["V"]), "reads no parameter 'V'", "U, W, b, c")
    said(ArgumentError, lambda: terms(lp.Recurrent(lambda x, h: (h, h + x)), inputs, 2, normal(2, 3)), "no parameters")


def test_integers_reach_nothing() -> None:
    tokens = torch.zeros(4, 2, dtype=torch.int64)
    said(
        ArgumentError, lambda: reach(lp.Recurrent(Tokens()), tokens), "inputs of this net", "int64 [rows]", "embedding"
    )
    assert gradient_flow(lp.Recurrent(Tokens()), tokens, square).norms.shape == (4, 4)


def test_outputs_that_are_integers_have_no_gradient() -> None:
    net = lp.Recurrent(lambda x, h: ((h > 0).long(), torch.tanh(h + x)))
    call = lambda: gradient_flow(net, normal(4, 2, 3), square, normal(2, 3))  # noqa: E731
    said(ArgumentError, call, "the outputs of this net are no floating numbers", "int64 [rows, 3]")


def test_starts_and_inputs_of_fixed_points() -> None:
    net = linear(0.5 * orthogonal(3))
    call: Any = fixed_points
    said(ArgumentError, lambda: call(net, normal(2, 3)), "several rows", "[2, 3]")
    for starts in (0, -3, 2.5, True, None):
        said(ArgumentError, lambda starts=starts: call(net, normal(1, 3), starts), "'starts'", repr(starts))
    said(lp.errors.StateMismatch, lambda: call(net, normal(1, 3), normal(5, 4)), "'h' has the wrong shape")
    said(ArgumentError, lambda: call(example("GRU"), normal(7)), "wrong number of features")
    said(ArgumentError, lambda: call(lp.GRU(3, 4), normal(3)), "no network to look into")
    said(ArgumentError, lambda: call(example("Perceptron"), normal(3)), "no floating state")
