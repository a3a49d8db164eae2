"""A feed-forward cell: one hidden layer, applied at every step, without a state."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import constant, uniform
from leporello.loop.cell import Cell


class Perceptron(Cell):
    """h = tanh(U x + b);  o = V h + c;  there is no state: it is ().

    U (hidden, inputs), V (outputs, hidden), b (hidden), c (outputs).
    At first U and V are uniform within 1/sqrt(columns), b and c zero.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        check_sizes(inputs=inputs, hidden=hidden, outputs=outputs)
        super().__init__()
        self.inputs, self.hidden, self.outputs = inputs, hidden, outputs
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.V = uniform(outputs, hidden, bound=hidden**-0.5)
        self.b = constant(hidden, value=0)
        self.c = constant(outputs, value=0)

    def forward(self, x: Tensor, state: tuple[()] = ()) -> tuple[Tensor, tuple[()]]:
        h = torch.tanh(self.b + x @ self.U.T)
        o = self.c + h @ self.V.T
        return o, ()
