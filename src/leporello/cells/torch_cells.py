"""The cells of `torch.nn`: `RNN`, `GRU`, `LSTM`, with their parameters and initial values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from leporello.cells.parameters import check_choice, check_sizes, uniform
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell

NONLINEARITY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda a: a,
}


class RNN(Cell):
    """h' = f(U x + b + W h + c);  the output is h'.

    U (hidden, inputs) is torch's weight_ih, W (hidden, hidden) weight_hh, b and c (hidden) bias_ih and bias_hh.
    At first all are uniform within 1/sqrt(hidden), as torch.nn's are: the same seed gives the same values.

    nonlinearity   f: "tanh", "relu" or "identity"
    bias           False: no b, no c
    """

    output_leaf = "h"

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


class GRU(Cell):
    """r = sigmoid(Ur x + br + Wr h + cr);  z = sigmoid(Uz x + bz + Wz h + cz);
    n = tanh(Un x + bn + r (Wn h + cn));  h' = (1 - z) n + z h;  the output is h'.

    U (3 hidden, inputs) is torch's weight_ih, W (3 hidden, hidden) weight_hh, b and c (3 hidden) bias_ih and bias_hh,
    the gates below each other as r, z, n. At first all are uniform within 1/sqrt(hidden), as torch.nn's are: the same
    seed gives the same values.

    bias   False: no b, no c
    """

    output_leaf = "h"

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


class LSTM(Cell):
    """i = sigmoid(Ui x + bi + Wi h + ci), f and o likewise;  g = tanh(Ug x + bg + Wg h + cg);
    c' = f c + i g;  h' = o tanh c', or P (o tanh c') with a projection;  the output is h'.

    U (4 hidden, inputs) is torch's weight_ih, W (4 hidden, size of h) weight_hh, b and c (4 hidden) bias_ih and
    bias_hh, the gates below each other as i, f, g, o; P (projection, hidden) is weight_hr. The state is h, c. At first
    all are uniform within 1/sqrt(hidden), as torch.nn's are: the same seed gives the same values.

    bias         False: no b, no c
    projection   the size of h, smaller than hidden; 0: no projection, h is as large as c
    """

    output_leaf = "h"

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

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
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
