"""The LSTM with peephole connections: Gers and Schmidhuber 2000; Graves 2013, arXiv 1308.0850, equations 7 to 11."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import uniform
from leporello.loop.cell import Cell


class PeepholeLSTM(Cell):
    """i = sigmoid(Ui x + Wi h + p_i c + bi)                      (7)
    f = sigmoid(Uf x + Wf h + p_f c + bf)                      (8)
    c' = f c + i tanh(Ug x + Wg h + bg)                        (9)
    o = sigmoid(Uo x + Wo h + p_o c' + bo)                     (10)
    h' = o tanh c';  the output is h'                          (11)

    U (4 hidden, inputs), W (4 hidden, hidden), b (4 hidden), gates in the order i, f, g, o; the peepholes p_i, p_f, p_o
    (hidden) are diagonal: a unit's gates read its own cell state only. At first all are uniform within 1/sqrt(hidden).
    The state is h, c.
    """

    def __init__(self, inputs: int, hidden: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        super().__init__(learned=learned, h=hidden, c=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        bound = hidden**-0.5
        self.U = uniform(4 * hidden, inputs, bound=bound)
        self.W = uniform(4 * hidden, hidden, bound=bound)
        self.b = uniform(4 * hidden, bound=bound)
        self.p_i = uniform(hidden, bound=bound)
        self.p_f = uniform(hidden, bound=bound)
        self.p_o = uniform(hidden, bound=bound)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, g, o = (self.b + x @ self.U.T + h @ self.W.T).chunk(4, -1)
        i = torch.sigmoid(i + self.p_i * c)
        f = torch.sigmoid(f + self.p_f * c)
        g = torch.tanh(g)
        c = f * c + i * g
        o = torch.sigmoid(o + self.p_o * c)
        h = o * torch.tanh(c)
        return h, (h, c)
