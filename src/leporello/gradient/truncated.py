"""`Truncated`: back-propagation through time in windows side by side.

A weight of 0 at every border and 1 elsewhere, on the delay of the backward loop: one sweep back, as for `Full`.
What it gives is no gradient of any function: what lies further back than the window's beginning does not count.
Known shortcoming: on `stepwise` a cut is a multiplication, and 0 times an infinite gradient is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.loop.loop import Loop
from leporello.rewrite.weigh import weigh


@dataclass(frozen=True)
class Truncated(Method):
    """The gradient within windows of so many steps: none passes from one window back to the one before.

        for t in range(length):
            if t % steps == 0:
                state = detach(state)
            outputs[t], state = cell(inputs[t], state)

    steps   of a window, counted from the beginning of each call

    The beginning of a call is a border too: the state handed in gets no gradient, as if it were detached. The cut goes
    through every leaf of the state, and through targets that are fed back. Outputs are those of `Full`.

    >>> lp.Recurrent(lp.LSTM(3, 4), gradient=Truncated(35)).gradient
    Truncated(steps=35)
    """

    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise ArgumentError(
                "the argument 'steps' is no number of steps.",
                came=repr(self.steps),
                expected="a positive integer: the steps of a window",
                tries="lp.Truncated(35); lp.Full() for a gradient that is not cut",
            )

    def backward(self, loop: Loop) -> Loop:
        """The backward loop with a weight on its delay."""
        return weigh(loop)

    def crossing(self, length: int) -> list[float]:
        """Nothing at the beginning of a window, all of it elsewhere.

        >>> Truncated(3).crossing(7)
        [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
        """
        return [float(time % self.steps != 0) for time in range(length)]

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The same in every row, made on the device."""
        crosses = torch.arange(length, device=device) % self.steps != 0
        return crosses.to(dtype).unsqueeze(1).expand(length, batch)
