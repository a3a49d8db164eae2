"""Simple recurrent networks: through the delay passes the hidden value (`Elman`), the output (`Jordan`), or both.

An output that is fed back can be replaced by its target: teacher forcing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leporello.cells.parameters import check_sizes, constant, orthogonal, uniform
from leporello.loop.cell import Cell


class Elman(Cell):
    """a = b + W h + U x;  h' = tanh a;  o = c + V h'.

    U (hidden, inputs), W (hidden, hidden), V (outputs, hidden), b (hidden), c (outputs).
    At first W is orthogonal, so that the state does not decay (torch.nn's uniform W has a spectral radius near 0.58);
    U and V are uniform within 1/sqrt(columns), b and c zero.

    >>> o, h = Elman(3, 5, 2)(torch.ones(4, 3))
    >>> o.shape, h.shape
    (torch.Size([4, 2]), torch.Size([4, 5]))
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden, outputs=outputs)
        super().__init__(learned=learned, h=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, outputs
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.W = orthogonal(hidden, hidden)
        self.V = uniform(outputs, hidden, bound=hidden**-0.5)
        self.b = constant(hidden, value=0)
        self.c = constant(outputs, value=0)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a = self.b + x @ self.U.T + h @ self.W.T
        h = torch.tanh(a)
        o = self.c + h @ self.V.T
        return o, h


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

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, o = state
        a = self.b + x @ self.U.T + o @ self.R.T + h @ self.W.T
        h = torch.tanh(a)
        o = self.c + h @ self.V.T
        return o, (h, self.feed(o))
