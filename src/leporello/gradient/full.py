"""`Full`: exact back-propagation through time."""

from __future__ import annotations

from dataclasses import dataclass

from leporello.gradient.backward import Backward


@dataclass(frozen=True, repr=False)
class Full(Backward):
    """The exact gradient: every loss reaches every earlier step.

    Memory grows with the length (what each step saves), time is one sweep back.

    clip_state   see `Backward`

    >>> Full()
    Full()
    >>> Full(clip_state=1)
    Full(clip_state=1.0)
    """
