"""`Full`: exact back-propagation through time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leporello.loop.loop import Loop


@dataclass(frozen=True)
class Full:
    """The exact gradient: every loss reaches every earlier step.

    Memory grows with the length (what each step saves), time is one sweep back.

    >>> Full()
    Full()
    """

    def backward(self, loop: Loop) -> Loop:
        """The backward loop as it is."""
        return loop

    def crossing(self, length: int) -> list[float]:
        """Every step passes all of it back.

        >>> Full().crossing(3)
        [1.0, 1.0, 1.0]
        """
        return [1.0] * length

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> None:
        """None: there is nothing to multiply by."""
