"""Back-propagation through time: the base classes with a limit and with weights on the state's gradient, and `Full`."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, fields

from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.gradient.work import Work
from leporello.rewrite.clip import clip
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.weigh import weigh


@dataclass(frozen=True, kw_only=True, repr=False)
class Backward(Method):
    """A method that goes back through time.

    clip_state   the largest norm that the gradient of a row's state may have when it arrives at a step, over all its
                 leaves; a larger one is scaled down. `net.clipped` is the share of steps and rows where that happened
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
        """What rewrites the backward Loop: methods that differ in their weights alone share plans, which read them."""
        return (type(self).passes, type(self).backward, self.clip_state)

    def passes(self) -> tuple[Pass, ...]:
        """The clip of the state's gradient, after the passes of a derived class."""
        limit = self.clip_state
        if limit is None:
            return super().passes()
        why = "acts on the gradient as it arrives at a step, weighted already"
        return (*super().passes(), Pass("backward", "clip", why, lambda c, loop: clip(loop, limit)))

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        time, memory, gives = super().cost(work, length, batch)
        return time, memory, gives if self.clip_state is None else "a biased one: state gradients are clipped"

    def __repr__(self) -> str:
        """The constructor call, without options that have their default values."""
        names = [option.name for option in fields(self) if option.repr and getattr(self, option.name) != option.default]
        names.sort(key=lambda name: name == "clip_state")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Weighted(Backward):
    """A method with a weight on what each step passes back to the step before."""

    def passes(self) -> tuple[Pass, ...]:
        why = "the weight of step t multiplies what step t passes back"
        return (Pass("backward", "weigh", why, lambda c, loop: weigh(loop)), *super().passes())


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
