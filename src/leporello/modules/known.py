"""`Known`: how a step of a learner is run, found once and used for as long as nothing it depends on has changed.

Knows plans and the order of a call's tensors; whatever is not as it was goes the long way.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.engine.plan import Plan
from leporello.gradient.carried import Carried
from leporello.loop.state import Tree
from leporello.modules.arguments import Call
from leporello.modules.fingerprint import autocast_mode
from leporello.modules.gather import Gathering, gathering
from leporello.modules.inputs import home_of
from leporello.modules.watch import Watch


@dataclass(frozen=True, eq=False)
class Known:
    """How a step is run, for as long as its input has this form and the network stays as it is.

    asked     the engine, as the network names it
    home      device and dtype of a fresh state
    names     of the state's leaves
    learned   for each of them whether the initial state's has a gradient
    form      of the input; None where it must be looked at every time
    """

    plan: Plan
    carried: Carried
    asked: str
    home: dict[str, Any]
    batch: int
    names: list[str]
    learned: list[bool]
    form: Hashable
    watch: Watch
    gather: Gathering

    @staticmethod
    def of(cell: nn.Module, call: Call, plan: Plan, carried: Carried, asked: str, x: Tree) -> Known:
        names, learned = [name for name, _ in call.states], [leaf.requires_grad for _, leaf in call.states]
        home = home_of(cell, call.sequences, call.state)
        form, gather = _form(x, home["device"]), gathering(plan.loop, cell, names)
        return Known(plan, carried, asked, home, call.batch, names, learned, form, Watch(cell), gather)

    def fits(self, x: Tree, asked: str) -> bool:
        """Whether a step with this input is run so too."""
        return (
            self.form is not None
            and self.form == _form(x, self.home["device"])
            and self.asked == asked
            and self.watch.same()
        )


def _form(x: Tree, device: torch.device) -> Hashable:
    if x is None:
        return (autocast_mode(device),)
    if type(x) is not Tensor or x.requires_grad:
        return None
    return (autocast_mode(device), x.shape, x.dtype, x.device)
