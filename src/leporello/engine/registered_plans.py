"""`RegisteredPlan`: a plan that graph operators look up by name.

The registry holds weak references: a plan lives as long as somebody holds its `RegisteredPlan`.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.engine.operator_plan import OperatorPlan
from leporello.errors import EngineRefusal

_numbers = itertools.count()
_named: weakref.WeakValueDictionary[str, RegisteredPlan] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class RegisteredPlan(OperatorPlan):
    """A plan that operators look up by name, for as long as somebody holds this object.

    The name has a hash of the shapes and dtypes of all results, so that a graph in torch's disk cache fits the plan.
    """

    def __post_init__(self) -> None:
        description = repr((self.plan.engine, self.plan.wanted, self.results, self.gradients, self.reads))
        self.name = f"{next(_numbers)}.{hashlib.sha256(description.encode()).hexdigest()[:16]}"
        _named[self.name] = self

    @property
    def has_keepalive(self) -> bool:
        """Whether the forward operator returns one tensor more, which keeps the plan alive until the backward pass."""
        return self.trains and all(torch.empty(0, device=port.device).is_cpu for port in self.plan.loop.inputs)

    def all_with_constants(self, values: Sequence[Tensor]) -> list[Tensor]:
        """All inputs of the Loop, from those that are passed (`handed`), which are made contiguous."""
        return self.with_constants(self.handed, [value.contiguous() for value in values])


def registered(name: str) -> RegisteredPlan:
    """The plan of that name; raises where it is no longer alive."""
    plan = _named.get(name)
    if plan is None:
        raise EngineRefusal(
            "the network of a compiled graph is gone.",
            tries="keep the network for as long as what was compiled of it runs, backward included",
        )
    return plan
