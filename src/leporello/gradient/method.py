"""`Method`: what a gradient method is asked for.

Knows backward loops and weights; knows nothing of cells, calls or engines.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leporello.loop.loop import Loop


@runtime_checkable
class Method(Protocol):
    """How the gradient goes back through the steps.

    A method is compared by value and can be hashed (a frozen dataclass is both): plans are remembered by it.
    """

    def backward(self, loop: Loop) -> Loop:
        """The backward loop that is run instead of the exact one; it may read the sequence `call.weight`."""

    def crossing(self, length: int) -> list[float]:
        """For each step the weight of what it passes back to the step before; pictures show it.

        A 0 in the first place says that nothing ever enters the state handed in: it is then detached.
        """

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The same for each row, (length, batch), asked for once a call; None where every weight is 1.

        Rows may differ, and calls may: numbers that are drawn are drawn here.
        """
