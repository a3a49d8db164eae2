"""The Jordan cell: the output passes through the delay, so that targets can replace it (teacher forcing)."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import constant, orthogonal, uniform
from leporello.loop.cell import Cell


class Jordan(Cell):
    """a = b + W o + U x;  h = tanh a;  o' = c + V h.

    U (hidden, inputs), W (hidden, outputs), V (outputs, hidden), b (hidden), c (outputs).
    The state is what is fed back: feed(o'), which is o' itself unless a subclass says otherwise.
    At first W is orthogonal, U and V are uniform within 1/sqrt(columns), b and c zero.
    """

    feedback = "o"

    def __init__(self, inputs: int, hidden: int, outputs: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden, outputs=outputs)
        super().__init__(learned=learned, o=outputs)
        self.inputs, self.hidden, self.outputs = inputs, hidden, outputs
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.W = orthogonal(hidden, outputs)
        self.V = uniform(outputs, hidden, bound=hidden**-0.5)
        self.b = constant(hidden, value=0)
        self.c = constant(outputs, value=0)

    def forward(self, x: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        a = self.b + x @ self.U.T + o @ self.W.T
        h = torch.tanh(a)
        o = self.c + h @ self.V.T
        return o, self.feed(o)
