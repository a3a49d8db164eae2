"""The cell of `torch.nn.GRU`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import uniform
from leporello.loop.cell import Cell


class GRU(Cell):
    """r = sigmoid(Ur x + br + Wr h + cr);  z = sigmoid(Uz x + bz + Wz h + cz);
    n = tanh(Un x + bn + r (Wn h + cn));  h' = (1 - z) n + z h;  the output is h'.

    U (3 hidden, inputs) is torch's weight_ih, W (3 hidden, hidden) weight_hh, b and c (3 hidden) bias_ih and bias_hh,
    the gates below each other as r, z, n. At first all are uniform within 1/sqrt(hidden), as torch.nn's are: the same
    seed gives the same numbers.

    bias   False: no b, no c
    """

    b: nn.Parameter | None
    c: nn.Parameter | None

    def __init__(self, inputs: int, hidden: int, *, bias: bool = True, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        super().__init__(learned=learned, h=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        bound = hidden**-0.5
        self.U = uniform(3 * hidden, inputs, bound=bound)
        self.W = uniform(3 * hidden, hidden, bound=bound)
        self.register_parameter("b", uniform(3 * hidden, bound=bound) if bias else None)
        self.register_parameter("c", uniform(3 * hidden, bound=bound) if bias else None)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        xr, xz, xn = linear(x, self.U, self.b).chunk(3, -1)
        hr, hz, hn = linear(h, self.W, self.c).chunk(3, -1)
        r = torch.sigmoid(xr + hr)
        z = torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        h = (1 - z) * n + z * h
        return h, h
