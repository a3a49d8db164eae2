"""The cell with both recurrences: the hidden value and the output pass through delays."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import constant, orthogonal, uniform
from leporello.loop.cell import Cell


class ElmanJordan(Cell):
    """a = b + W h + R o + U x;  h' = tanh a;  o' = c + V h'.

    U (hidden, inputs), W (hidden, hidden), R (hidden, outputs), V (outputs, hidden), b (hidden), c (outputs).
    The state is h and what is fed back, feed(o').
    At first W is orthogonal, U, R and V are uniform within 1/sqrt(columns), b and c zero.
    """

    feedback = "o"

    def __init__(self, inputs: int, hidden: int, outputs: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden, outputs=outputs)
        super().__init__(learned=learned, h=hidden, o=outputs)
        self.inputs, self.hidden, self.outputs = inputs, hidden, outputs
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.W = orthogonal(hidden, hidden)
        self.R = uniform(hidden, outputs, bound=outputs**-0.5)
        self.V = uniform(outputs, hidden, bound=hidden**-0.5)
        self.b = constant(hidden, value=0)
        self.c = constant(outputs, value=0)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, o = state
        a = self.b + x @ self.U.T + o @ self.R.T + h @ self.W.T
        h = torch.tanh(a)
        o = self.c + h @ self.V.T
        return o, (h, self.feed(o))
