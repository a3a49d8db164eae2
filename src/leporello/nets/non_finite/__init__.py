"""Where a value that is not finite came from: the first operator, step and row of a call."""

from leporello.nets.non_finite.origin import Origin
from leporello.nets.non_finite.search import first_not_finite

__all__ = ["Origin", "first_not_finite"]
