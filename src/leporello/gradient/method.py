"""`Method`: what a gradient method must provide. As it stands it is exact back-propagation through time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from leporello.engine import autograd
from leporello.engine.plan import Plan, Sweep
from leporello.engine.state_gradient import Passing
from leporello.gradient.work import Work
from leporello.loop.loop import Loop
from leporello.rewrite.pipeline import Pass


class Method:
    """How the gradient goes back through the steps; a method of one's own derives from it.

    A method is compared by value and can be hashed (a frozen dataclass is both): plans are remembered by it.

    backwards      whether it goes back in time: only then inputs and targets get gradients
    random         whether the same call has another gradient each time
    by_reference   what the engine `reference` does with it, for `explain`
    """

    backwards = True
    random = False
    by_reference = "the whole step, one after another, with torch's own autograd"

    @property
    def limit(self) -> float | None:
        """The largest norm of a row's state gradient as it arrives at a step; None for no limit."""
        return None

    def backward(self, loop: Loop) -> Loop:
        """The backward Loop that is run instead of the exact one; the rewrite `weigh` makes it read `weights`."""
        return loop

    def passes(self) -> tuple[Pass, ...]:
        """What the pipeline does to the backward Loop for this method: `backward`, where the method has one."""
        if type(self).backward is Method.backward:
            return ()
        name = f"{type(self).__name__}.backward"
        return (Pass("backward", name, "the method's own rewrite", lambda c, loop: self.backward(loop)),)

    @property
    def plan_key(self) -> Hashable:
        """The method's part of a plan's cache key: methods with equal ones share plans. By default itself."""
        return self

    def crossing(self, length: int) -> list[float]:
        """For each step the weight of what it passes back to the step before; pictures show it.

        A 0 in the first place says that nothing ever enters the state handed in: it is then detached.
        """
        return [1.0] * length

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The same for each row, (length, batch), computed once a call; None where every weight is 1.

        Rows may differ, and calls may: numbers that are drawn are drawn here.
        """
        return None

    @property
    def weights_stay(self) -> bool:
        """Whether weights are the same at every call of one length and batch; then they are computed once."""
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
        """What is kept between the sweeps, in words; nothing where it is what the plan's own forward sweep saves."""
        return []

    def run(self, plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
        """Outputs in the order of the plan's loop, differentiable with respect to the values the plan wants."""
        return autograd.call(plan, values, length, batch, passing)
