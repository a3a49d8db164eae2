"""Gradient methods as objects: what is done to the backward Loop before it runs. `method` says what each must have."""

from leporello.gradient.checkpointed import Checkpointed
from leporello.gradient.cost import cost
from leporello.gradient.full import Full
from leporello.gradient.method import Method
from leporello.gradient.random_truncated import RandomTruncated
from leporello.gradient.truncated import Truncated

__all__ = ["Checkpointed", "Full", "Method", "RandomTruncated", "Truncated", "cost"]
