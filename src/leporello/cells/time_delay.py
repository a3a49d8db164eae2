"""A time-delay cell: it reads the last few inputs through a chain of delays, without a cycle."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import constant, uniform
from leporello.loop.cell import Cell


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
