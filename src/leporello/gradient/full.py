"""`Full`: exact back-propagation through time."""

from __future__ import annotations

from dataclasses import dataclass

from leporello.gradient.method import Method


@dataclass(frozen=True)
class Full(Method):
    """The exact gradient: every loss reaches every earlier step.

    Memory grows with the length (what each step saves), time is one sweep back.

    >>> Full()
    Full()
    """
