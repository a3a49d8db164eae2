# mypy: disallow-any-generics, disallow-untyped-calls, disallow-untyped-decorators, warn-return-any, extra-checks
"""Code as users write it, for type checkers. A line that must be refused ends with the names of mypy's and of pyright's
rule: `# refused: call-arg, reportCallIssue`."""

from __future__ import annotations

from typing import NamedTuple, assert_type

import torch
from torch import Tensor, nn

import leporello as lp


class Leaky(lp.Cell):
    """The cell of the README, with types."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__(h=hidden)
        self.U, self.W, self.V = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.9 * h + 0.1 * torch.tanh(self.U(x) + self.W(h))
        return self.V(h), h


class Pair(NamedTuple):
    h: Tensor
    c: Tensor


class Attending(lp.Cell):
    """Several leaves, a context, and no output."""

    def __init__(self) -> None:
        super().__init__(h=4, c=(2, 2))

    def forward(self, x: Tensor, state: Pair, context: Tensor) -> tuple[None, Pair]:
        return None, Pair(state.h + x, state.c + context)


class OneResult(lp.Cell):
    def forward(self, x: Tensor, h: Tensor) -> Tensor:  # refused: override, reportIncompatibleMethodOverride
        return h


def function(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return x, h


def right(inputs: Tensor) -> None:
    net = lp.Recurrent(Leaky(3, 4, 1), gradient=lp.Truncated(35), engine="cpu", batch_first=True)
    assert_type(net(inputs), tuple[Tensor, Tensor])
    assert_type(net(inputs, lengths=[5, 3], resets=None, gradient=lp.Full()), tuple[Tensor, Tensor])
    assert_type(net.step(inputs[0]), tuple[Tensor, Tensor])
    assert_type(lp.Recurrent(Attending())(inputs, context=inputs[0]), tuple[None, Pair])
    assert_type(lp.Recurrent(function)(inputs, inputs[0]), tuple[Tensor, Tensor])
    outputs, state = lp.Recurrent(lp.LSTM(3, 4))(inputs)
    assert_type(outputs, Tensor)
    hidden: Tensor = state.h
    outputs, ends = lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4), engine="stepwise")(inputs, lengths=[5, 3])
    score, final = lp.Summary(lp.GRU(3, 4), nn.Linear(4, 1), reads="state", engine="auto")(inputs)
    outputs, finals = lp.Layers(net, lp.Recurrent(lp.GRU(1, 3)))(inputs)


def read(one: lp.Recurrent) -> lp.Recurrent[Tensor, Tensor]:
    return lp.Recurrent(Leaky(3, 4, 1))


def wrong(inputs: Tensor, net: lp.Recurrent[Tensor, Tensor]) -> None:
    lp.Recurrent(Leaky(3, 4, 1), engine="cqu")  # refused: call-overload, reportCallIssue, reportArgumentType
    lp.Recurrent(Leaky(3, 4, 1), batchfirst=True)  # refused: call-overload, reportCallIssue
    lp.Recurrent(Leaky(3, 4, 1), gradient="full")  # refused: call-overload, reportCallIssue, reportArgumentType
    net(inputs, length=[5, 3])  # refused: call-arg, reportCallIssue
    net.step(inputs[0], resets=None)  # refused: call-arg, reportCallIssue
    lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4), engin="cpu")  # refused: call-arg, reportCallIssue
    lp.Summary(lp.GRU(3, 4), nn.Linear(4, 1), read="state")  # refused: call-arg, reportCallIssue
    lp.Summary(lp.GRU(3, 4), nn.Linear(4, 1))(inputs, reset=None)  # refused: call-arg, reportCallIssue
    lp.GRU(3, hidden_size=4)  # refused: call-arg, reportCallIssue
    lp.language.train("to be or not to be", hiden=8)  # refused: call-arg, reportCallIssue
    lp.language.train("to be or not to be", optimiser="adamx")  # refused: arg-type, reportArgumentType
