"""Gradient methods as objects: what is done to the backward Loop before it runs, or which Loop runs in its place.

`method` says what each must provide.
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
