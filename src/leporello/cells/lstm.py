"""The cell of `torch.nn.LSTM`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import uniform
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell


class LSTM(Cell):
    """i = sigmoid(Ui x + bi + Wi h + ci), f and o likewise;  g = tanh(Ug x + bg + Wg h + cg);
    c' = f c + i g;  h' = o tanh c', or P (o tanh c') with a projection;  the output is h'.

    U (4 hidden, inputs) is torch's weight_ih, W (4 hidden, size of h) weight_hh, b and c (4 hidden) bias_ih and
    bias_hh, the gates below each other as i, f, g, o; P (projection, hidden) is weight_hr. The state is h, c. At first
    all are uniform within 1/sqrt(hidden), as torch.nn's are: the same seed gives the same numbers.

    bias         False: no b, no c
    projection   the size of h, smaller than hidden; 0: no projection, h is as large as c
    """

    b: nn.Parameter | None
    c: nn.Parameter | None
    P: nn.Parameter | None

    def __init__(
        self, inputs: int, hidden: int, *, bias: bool = True, projection: int = 0, learned: bool = False
    ) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        _check_projection(projection, hidden)
        super().__init__(learned=learned, h=projection or hidden, c=hidden)
        self.inputs, self.hidden, self.outputs, self.projection = inputs, hidden, projection or hidden, projection
        bound = hidden**-0.5
        self.U = uniform(4 * hidden, inputs, bound=bound)
        self.W = uniform(4 * hidden, self.outputs, bound=bound)
        self.register_parameter("b", uniform(4 * hidden, bound=bound) if bias else None)
        self.register_parameter("c", uniform(4 * hidden, bound=bound) if bias else None)
        self.register_parameter("P", uniform(projection, hidden, bound=bound) if projection else None)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        a = linear(x, self.U, self.b) + linear(h, self.W, self.c)
        i, f, g, o = a.chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        if self.P is not None:
            h = h @ self.P.T
        return h, (h, c)


def _check_projection(projection: object, hidden: int) -> None:
    if not isinstance(projection, int) or isinstance(projection, bool) or not 0 <= projection < hidden:
        raise ArgumentError(
            "'projection' is no size for this LSTM.",
            came=repr(projection),
            expected=f"an integer from 1 to {hidden - 1} (smaller than hidden={hidden}), or 0 for none",
            tries="projection=0, or a larger hidden",
        )
