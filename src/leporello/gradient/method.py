"""`Method`: the base class of gradient methods. Its defaults are exact back-propagation through time."""

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
    """How the gradient goes back through the steps; users derive their own methods from it.

    A method must be hashable and compared by value (a frozen dataclass is both), because it is part of the cache key of
    plans.

    backwards      whether it goes back in time: only then inputs and targets get gradients
    random         whether equal calls with equal `weights` have different gradients
    by_reference   how the engine `reference` runs it, in words, for `explain`
    """

    backwards = True
    random = False
    by_reference = "the whole step, one after another, with torch's own autograd"

    @property
    def limit(self) -> float | None:
        """The largest norm of a row's state gradient as it arrives at a step; None for no limit."""
        return None

    def backward(self, loop: Loop) -> Loop:
        """The backward Loop that is run instead of `loop`, the exact one.

        The rewrite `weigh` makes a Loop that reads `weights`; without it they have no effect on a target.
        """
        return loop

    def passes(self) -> tuple[Pass, ...]:
        """The passes that rewrite the backward Loop for this method: `backward`, where a method overrides it."""
        if type(self).backward is Method.backward:
            return ()
        name = f"{type(self).__name__}.backward"
        return (Pass("backward", name, "the method's own rewrite", lambda c, loop: self.backward(loop)),)

    @property
    def plan_key(self) -> Hashable:
        """The method's part of a plan's cache key: methods with equal keys share plans. By default the method."""
        return self

    def crossing(self, length: int) -> list[float]:
        """For each step the weight of what it passes back to the step before; drawings of the network show it.

        If the first weight is 0, the initial state never gets a gradient, and it is detached.
        """
        return [1.0] * length

    def weights(self, length: int, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The same for each row, (length, batch), computed once a call; None where every weight is 1.

        Weights may differ between rows and calls: random weights are drawn here.
        """
        return None

    @property
    def weights_stay(self) -> bool:
        """Whether weights are the same at every call of one length and batch; then they are computed once."""
        return False

    def groups(self, length: int) -> Tensor | None:
        """For each step the index of the backward sweep that carries its loss, (length,); None for one sweep.

        With several, `weights` has the sweeps as its first axis.
        """
        return None

    @property
    def runs_once(self) -> bool:
        """Whether a call with gradients is one forward and one backward sweep, with weights or without."""
        return type(self).run is Method.run and self.groups(1) is None

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        """An estimate: time in forward passes, bytes beyond inputs and outputs, and what the result is, in words."""
        return 1 + work.backward / work.forward, float(work.saved * length * batch), "the exact gradient"

    def prepare(self, plan: Plan) -> None:
        """Build all that a call of this plan runs, so that errors come before any work."""
        plan.prepare()

    def sweeps(self, plan: Plan) -> list[tuple[str, Sweep]]:
        """The sweeps of a call with gradients, each with its title, in the order in which they run."""
        return [("forward", plan.forward), ("backward", plan.backward)]

    def kept(self, plan: Plan, length: int, batch: int) -> list[str]:
        """Lines that say what is kept between the sweeps; empty where it is what the plan's own forward sweep saves."""
        return []

    def run(self, plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
        """Outputs in the order of the Loop's, differentiable with respect to the values with a wanted gradient."""
        return autograd.call(plan, values, length, batch, passing)
