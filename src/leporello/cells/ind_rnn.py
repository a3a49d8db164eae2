"""The independently recurrent cell: Li and others 2018, arXiv 1803.04831, equation 2."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.parameters import between, check_sizes, constant, uniform
from leporello.loop.cell import Cell


class IndRNN(Cell):
    """h' = relu(U x + w h + b), w unit by unit;  the output is h'.

    U (hidden, inputs), w and b (hidden): a unit reads only its own past; a second cell on top lets units interact.
    At first w is uniform from 0 to 1, so that each unit decays at its own rate and none grows; U is uniform within
    1/sqrt(inputs), b zero.
    """

    output_leaf = "h"

    def __init__(self, inputs: int, hidden: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        super().__init__(learned=learned, h=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.w = between(0, 1, hidden)
        self.b = constant(hidden, value=0)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a = self.b + x @ self.U.T + self.w * h
        h = torch.relu(a)
        return h, h
