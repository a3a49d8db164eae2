"""Gradient methods as objects: each changes the backward Loop before it runs, or runs another Loop instead.

`Method` defines what a method provides.
"""

from leporello.gradient.checkpointed import Checkpointed
from leporello.gradient.cost import cost
from leporello.gradient.method import Method
from leporello.gradient.random_truncated import RandomTruncated
from leporello.gradient.rtrl import RTRL
from leporello.gradient.through_time import Full
from leporello.gradient.truncated import Truncated
from leporello.gradient.uoro import UORO

__all__ = ["RTRL", "UORO", "Checkpointed", "Full", "Method", "RandomTruncated", "Truncated", "cost"]
