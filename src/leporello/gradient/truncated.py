"""`Truncated`: back-propagation through time that goes no further back than a number of steps.

Adjacent windows are a weight of 0 at every border and 1 elsewhere, on the delay of the backward Loop: one backward
sweep, as for `Full`. Overlapping windows (BPTT(h; h') of Williams and Peng, 1990) take several sweeps, each with
adjacent windows. The result is not the gradient of any function: steps further back are ignored.
Known shortcoming: on `stepwise` a cut is a multiplication, and 0 times an infinite gradient is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.gradient.through_time import Weighted
from leporello.gradient.work import Work


@dataclass(frozen=True, repr=False)
class Truncated(Weighted):
    """After every `every` steps, the losses of those steps are carried back through the last `steps` steps.

        for t in range(length):                      # every = steps, the default: adjacent windows
            if t % steps == 0:
                state = detach(state)
            outputs[t], state = cell(inputs[t], state)

    steps        how far back a gradient goes: the steps of a window
    every        steps from the end of a window to the end of the next; 1 carries the loss of each step back through
                 `steps` steps, itself included. ceil(steps / every) sweeps back
    clip_state   see `Backward`

    Windows are counted from the beginning of each call, which is a border too: the state passed in gets no gradient,
    as if it were detached. The last window may be incomplete; its border is where it would be if the sequence went on.
    The cut applies to every leaf of the state, and to targets that are fed back. Outputs are those of `Full`.

    >>> lp.Recurrent(lp.LSTM(3, 4), gradient=Truncated(35)).gradient
    Truncated(steps=35)
    >>> Truncated(35, every=5)
    Truncated(steps=35, every=5)
    """

    steps: int
    every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse("steps", self.steps, "a positive integer: how many steps a gradient goes back")
        if self.every is None:
            return
        _refuse("every", self.every, "a positive integer, at most steps")
        if self.every > self.steps:
            raise ArgumentError(
                "the argument 'every' is larger than 'steps': some losses would be carried back nowhere.",
                came=f"every={self.every}, steps={self.steps}",
                expected="every <= steps",
                tries=f"lp.Truncated({self.every}, every={self.every})",
            )
        if self.every == self.steps:
            object.__setattr__(self, "every", None)

    @property
    def sweeps_back(self) -> int:
        """The number of backward sweeps, so that no two windows of one sweep overlap."""
        return 1 if self.every is None else -(-self.steps // self.every)

    def crossing(self, length: int) -> list[float]:
        """0 at the beginning of a window, 1 elsewhere; overlapping windows block only the first step of all.

        >>> Truncated(3).crossing(7)
        [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
        """
        if self.sweeps_back > 1:
            return [float(time > 0) for time in range(length)]
        return [float(time % self.steps != 0) for time in range(length)]

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        _, memory, _ = super().cost(work, length, batch)
        return 1 + self.sweeps_back * work.backward / work.forward, memory, f"a biased one: {self.steps} steps back"

    @property
    def weights_stay(self) -> bool:
        return True

    def groups(self, length: int) -> Tensor | None:
        """Losses of successive stretches of `every` steps are assigned to the sweeps in turn.

        >>> Truncated(4, every=2).groups(7).tolist()
        [0, 0, 1, 1, 0, 0, 1]
        """
        return None if self.every is None else torch.arange(length) // self.every % self.sweeps_back

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """`crossing`, the same in every row; with overlapping windows one such table for each sweep."""
        times = torch.arange(length, device=device)
        if self.every is None:
            crosses = times % self.steps != 0
            return crosses.to(dtype).unsqueeze(1).expand(length, batch)
        ends = times + self.steps  # where a window that began here would end
        sweeps = torch.arange(self.sweeps_back, device=device).unsqueeze(1)
        begins = (ends % self.every == 0) & ((ends // self.every - 1) % self.sweeps_back == sweeps)
        crosses = ~begins & (times != 0)
        return crosses.to(dtype).unsqueeze(2).expand(self.sweeps_back, length, batch)


def _refuse(argument: str, value: Any, expected: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(
            f"the argument '{argument}' is no number of steps.",
            came=repr(value),
            expected=expected,
            tries="lp.Truncated(35); lp.Full() for a gradient that is not cut",
        )
