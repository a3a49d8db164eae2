"""`Checkpointed`: the exact gradient in little memory; the forward steps are run again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leporello.engine import checkpoint
from leporello.engine.plan import Plan, Sweep
from leporello.engine.state_gradient import Passing
from leporello.errors import ArgumentError
from leporello.gradient.through_time import Backward
from leporello.gradient.work import Work


@dataclass(frozen=True, repr=False)
class Checkpointed(Backward):
    """The exact gradient; the forward pass keeps only the state every so many steps.

    The backward pass runs each window again from the state before it, and keeps what its backward sweep reads only
    until that sweep is done. With a second level a window is treated in the same way.

    every        steps from one kept state to the next; by default about length ** (levels / (levels + 1)), which is the
                 square root of the length for one level
    levels       1: the forward steps are run twice; 2: three times, in memory of about the cube root of the length
    clip_state   see `Backward`

    >>> Checkpointed().lengths(10_000)
    (100,)
    >>> Checkpointed(levels=2).lengths(27_000)
    (900, 30)
    """

    every: int | None = None
    levels: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None:
            _refuse("every", self.every, "a positive integer: steps from one kept state to the next")
        _refuse("levels", self.levels, "1 or 2 (or more)")

    def lengths(self, length: int) -> tuple[int, ...]:
        """Lengths of the windows of each level, from the outermost to the innermost."""
        lengths = [max(1, round(length ** (self.levels / (self.levels + 1))))] if self.every is None else [self.every]
        for level in range(self.levels - 1, 0, -1):
            lengths.append(max(1, round(lengths[-1] ** (level / (level + 1)))))
        return tuple(lengths)

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        time, _, gives = super().cost(work, length, batch)
        kept, steps = 0.0, length
        for window in self.lengths(length):
            kept, steps = kept + math.ceil(steps / window) * work.state * work.size, window
        return time + self.levels, batch * (kept + work.saved * min(steps, length)), gives

    def prepare(self, plan: Plan) -> None:
        super().prepare(plan)
        _ = plan.plain, plan.plain_places

    def sweeps(self, plan: Plan) -> list[tuple[str, Sweep]]:
        return [("forward", plan.plain), ("forward again, window by window", plan.forward), ("backward", plan.backward)]

    def kept(self, plan: Plan, length: int, batch: int) -> list[str]:
        every = self.lengths(length)
        states = [port for port in plan.loop.inputs if port.kind == "state"]
        size = (
            sum(port.dtype.itemsize * math.prod(port.shape) for port in states) * batch * math.ceil(length / every[0])
        )
        inner = "".join(f", then every {steps}" for steps in every[1:])
        return [f"saved    the state every {every[0]:,} steps{inner}: {size:,} bytes"]

    def run(self, plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
        return checkpoint.call(plan, values, length, batch, self.lengths(length), passing)


def _refuse(argument: str, value: Any, expected: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(
            f"the argument '{argument}' is no such number.",
            came=repr(value),
            expected=expected,
            tries="lp.Checkpointed()",
        )
