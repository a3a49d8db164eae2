"""The minimal GRU: Feng and others 2024, arXiv 2410.01201, section 3.1."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.parameters import check_sizes, constant, uniform
from leporello.loop.cell import Cell


class MinGRU(Cell):
    """z = sigmoid(Wz x + bz);  n = Wh x + bh;  h' = (1 - z) h + z n;  the output is h'.

    Wz and Wh (hidden, inputs), bz and bh (hidden). Gate and candidate n (the paper's h~) read the input alone, so the
    state passes through no matrix. At first Wz and Wh are uniform within 1/sqrt(inputs), bz and bh zero.
    """

    output_leaf = "h"

    def __init__(self, inputs: int, hidden: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        super().__init__(learned=learned, h=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        self.Wz = uniform(hidden, inputs, bound=inputs**-0.5)
        self.Wh = uniform(hidden, inputs, bound=inputs**-0.5)
        self.bz = constant(hidden, value=0)
        self.bh = constant(hidden, value=0)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.sigmoid(self.bz + x @ self.Wz.T)
        n = self.bh + x @ self.Wh.T
        h = (1 - z) * h + z * n
        return h, h
