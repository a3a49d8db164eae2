"""`Full`: exact back-propagation through time."""

from __future__ import annotations

from dataclasses import dataclass

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
