"""Where a value that is not finite came from: the first operator, step and row of a call."""

from leporello.modules.finite.first import first_not_finite
from leporello.modules.finite.origin import Origin

__all__ = ["Origin", "first_not_finite"]
