"""What the methods that go back through time have in common: a limit for the state's gradient, and perhaps a weight."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, fields

from leporello.errors import ArgumentError
from leporello.gradient.cost import Work
from leporello.gradient.method import Method
from leporello.loop.loop import Loop
from leporello.rewrite.clip import clip
from leporello.rewrite.weigh import weigh


@dataclass(frozen=True, kw_only=True, repr=False)
class Backward(Method):
    """A method that goes back through time.

    clip_state   the largest norm that the gradient of a row's state may have when it arrives at a step, over all its
                 leaves; a larger one is made shorter. `net.clipped` is the share of steps and rows where that happened
    """

    clip_state: float | None = None

    def __post_init__(self) -> None:
        limit = self.clip_state
        if limit is None:
            return
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
            raise ArgumentError(
                "the argument 'clip_state' is no limit for a norm.",
                came=repr(limit),
                expected="a positive number, or None for no limit",
                tries="clip_state=1.0",
            )
        object.__setattr__(self, "clip_state", float(limit))

    @property
    def limit(self) -> float | None:
        return self.clip_state

    @property
    def plan_key(self) -> Hashable:
        return (type(self).backward, self.clip_state)

    def backward(self, loop: Loop) -> Loop:
        """The backward loop, with the limit."""
        return loop if self.clip_state is None else clip(loop, self.clip_state)

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        time, memory, gives = super().cost(work, length, batch)
        return time, memory, gives if self.clip_state is None else "a biased one: state gradients are clipped"

    def __repr__(self) -> str:
        """Without what is as it would be anyway."""
        told = [own.name for own in fields(self) if own.repr and getattr(self, own.name) != own.default]
        told.sort(key=lambda name: name == "clip_state")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in told)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Weighed(Backward):
    """A method with a weight on what each step passes back to the step before."""

    def backward(self, loop: Loop) -> Loop:
        """The backward loop with a weight on its delay."""
        return super().backward(weigh(loop))
