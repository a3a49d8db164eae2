"""`RegisteredPlan`: a plan that graph operators look up by name.

The registry holds weak references: a plan lives as long as somebody holds its `RegisteredPlan`.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    def with_constants(self, places: Sequence[int], values: Sequence[Tensor]) -> list[Any]:
        """Values in the order of the Loop's inputs, with its constants; None for inputs that are neither.

        places   the index of each value
        """
        loop = self.plan.loop
        inputs: list[Any] = [loop.constants.get(port.name) for port in loop.inputs]
        for place, value in zip(places, values, strict=True):
            inputs[place] = value
        return inputs

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
