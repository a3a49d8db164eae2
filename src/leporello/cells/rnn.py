"""The cell of `torch.nn.RNN`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from leporello.cells.argument_checks import check_choice, check_sizes
from leporello.cells.initialisation import uniform
from leporello.loop.cell import Cell

NONLINEARITY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda a: a,
}


class RNN(Cell):
    """h' = f(U x + b + W h + c);  the output is h'.

    U (hidden, inputs) is torch's weight_ih, W (hidden, hidden) weight_hh, b and c (hidden) bias_ih and bias_hh.
    At first all are uniform within 1/sqrt(hidden), as torch.nn's are: the same seed gives the same numbers.

    nonlinearity   f: "tanh", "relu" or "identity"
    bias           False: no b, no c
    """

    b: nn.Parameter | None
    c: nn.Parameter | None

    def __init__(
        self, inputs: int, hidden: int, *, nonlinearity: str = "tanh", bias: bool = True, learned: bool = False
    ) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        check_choice("nonlinearity", nonlinearity, NONLINEARITY)
        super().__init__(learned=learned, h=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        self.nonlinearity = nonlinearity
        bound = hidden**-0.5
        self.U = uniform(hidden, inputs, bound=bound)
        self.W = uniform(hidden, hidden, bound=bound)
        self.register_parameter("b", uniform(hidden, bound=bound) if bias else None)
        self.register_parameter("c", uniform(hidden, bound=bound) if bias else None)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a = linear(x, self.U, self.b) + linear(h, self.W, self.c)
        h = NONLINEARITY[self.nonlinearity](a)
        return h, h
