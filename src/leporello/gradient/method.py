"""`Method`: what a gradient method is asked for. As it stands it is exact back-propagation through time.

Knows backward loops, weights and how a plan is run; knows nothing of cells or calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from leporello.engine import bridge
from leporello.engine.passing import Passing
from leporello.engine.plan import Plan, Sweep
from leporello.gradient.cost import Work
from leporello.loop.loop import Loop


class Method:
    """How the gradient goes back through the steps; a method of one's own derives from it.

    A method is compared by value and can be hashed (a frozen dataclass is both): plans are remembered by it.

    backwards      whether it goes back in time: only then inputs and targets get gradients
    random         whether the same call has another gradient each time
    by_reference   what the engine `reference` does with it, in words
    """

    backwards = True
    random = False
    by_reference = "the whole step, one after another, with torch's own autograd"

    @property
    def limit(self) -> float | None:
        """The largest norm of a row's state gradient as it arrives at a step; None for no limit."""
        return None

    def backward(self, loop: Loop) -> Loop:
        """The backward loop that is run instead of the exact one; it may read the sequence `call.weight`."""
        return loop

    @property
    def plan_key(self) -> Hashable:
        """What its plans depend on: methods with the same one share them. Itself, unless it says otherwise."""
        return self

    def crossing(self, length: int) -> list[float]:
        """For each step the weight of what it passes back to the step before; pictures show it.

        A 0 in the first place says that nothing ever enters the state handed in: it is then detached.
        """
        return [1.0] * length

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The same for each row, (length, batch), asked for once a call; None where every weight is 1.

        Rows may differ, and calls may: numbers that are drawn are drawn here.
        """
        return None

    @property
    def weights_stay(self) -> bool:
        """Whether weights are the same at every call of one length and batch; then they are asked for once."""
        return False

    def groups(self, length: int) -> Tensor | None:
        """For each step the number of the sweep back that carries its loss, where there are several; weights then
        have one more axis in front, of the sweeps."""
        return None

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        """Time in forward passes, bytes beyond inputs and outputs, and what the result is: an estimate."""
        return 1 + work.backward / work.forward, float(work.saved * length * batch), "the exact gradient"

    def prepare(self, plan: Plan) -> None:
        """Make ready all that a call of this plan runs, so that a refusal comes before any work."""
        plan.prepare()

    def sweeps(self, plan: Plan) -> list[tuple[str, Sweep]]:
        """The sweeps of a call that trains, each with its title, in the order in which they run."""
        return [("forward", plan.forward), ("backward", plan.backward)]

    def kept(self, plan: Plan, length: int, batch: int) -> list[str]:
        """What lies in memory between the sweeps, in words; none for what the plan's own forward sweep saves."""
        return []

    def run(self, plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
        """Outputs in the order of the plan's loop, differentiable with respect to the values the plan wants."""
        return bridge.call(plan, values, length, batch, passing)
