"""Cells without a cycle: `Perceptron` has no state, `TimeDelay` reads the last few inputs through a chain of delays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leporello.cells.parameters import check_sizes, constant, uniform
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


class TimeDelay(Cell):
    """o = c + K_0 x + K_1 x1 + ... + K_(window-1) x(window-1);  x1' = x, x2' = x1, ...

    K (window, outputs, inputs), c (outputs). The state is the past inputs, newest first, a leaf each: x1 is the last
    input, x2 the one before. A window of 1 has no state. At first K is uniform within 1/sqrt(inputs window), c zero.
    """

    def __init__(self, inputs: int, outputs: int, window: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, outputs=outputs, window=window)
        super().__init__(learned=learned, **{f"x{k}": inputs for k in range(1, window)})
        self.inputs, self.outputs, self.window = inputs, outputs, window
        self.K = uniform(window, outputs, inputs, bound=(inputs * window) ** -0.5)
        self.c = constant(outputs, value=0)

    def forward(self, x: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
        seen = (x, *_leaves(state))
        o: Tensor = self.c
        for k in range(self.window):
            o = o + seen[k] @ self.K[k].T
        return o, seen[0] if self.window == 2 else seen[:-1]


def _leaves(state: Any) -> tuple[Tensor, ...]:
    """The leaves of a state: a single one is a tensor, several are a tuple, none is () or None."""
    return (state,) if isinstance(state, Tensor) else tuple(state or ())
