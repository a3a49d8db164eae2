"""`RegisteredPlan`: a plan that graph operators look up by name, and the inputs and outputs of its sweeps as operators.

The registry holds weak references: a plan lives as long as somebody holds its `RegisteredPlan`.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from leporello.engine.plan import Plan, Sweep
from leporello.engine.wiring import Pool
from leporello.errors import EngineRefusal
from leporello.loop.port import Port

_numbers = itertools.count()
_named: weakref.WeakValueDictionary[str, RegisteredPlan] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class RegisteredPlan:
    """A plan that operators look up by name, for as long as somebody holds this object.

    The name has a hash of the shapes and dtypes of all results, so that a graph in torch's disk cache fits the plan.
    """

    plan: Plan

    def __post_init__(self) -> None:
        description = repr((self.plan.engine, self.plan.wanted, self.results, self.gradients, self.reads))
        self.name = f"{next(_numbers)}.{hashlib.sha256(description.encode()).hexdigest()[:16]}"
        _named[self.name] = self

    @property
    def trains(self) -> bool:
        """Whether any gradient is wanted."""
        return any(self.plan.wanted)

    @property
    def has_keepalive(self) -> bool:
        """Whether the forward operator returns one tensor more, which keeps the plan alive until the backward pass."""
        return self.trains and all(torch.empty(0, device=port.device).is_cpu for port in self.plan.loop.inputs)

    @property
    def by_reference(self) -> bool:
        """Whether the engine is `reference`."""
        return self.plan.target is None

    @cached_property
    def handed(self) -> tuple[int, ...]:
        """Indices of the Loop's inputs that are passed to the operators; the others are constants of the step."""
        loop = self.plan.loop
        ports = enumerate(loop.inputs)
        return tuple(i for i, port in ports if port.kind != "invariant" or port.name not in loop.constants)

    @cached_property
    def forward(self) -> Sweep:
        """The forward sweep of the operators: none of its outputs is a view of a larger tensor."""
        return self.plan.forward.without_befores()

    @cached_property
    def results(self) -> tuple[Port, ...]:
        """The outputs of the forward operator: the Loop's, then, if a target trains, what only the backward reads."""
        saves = self.trains and not self.by_reference
        return self.plan.forward.loop.outputs if saves else self.plan.loop.outputs

    @cached_property
    def gradients(self) -> tuple[Port | None, ...]:
        """For each input that is passed its gradient's port, None where it has no gradient."""
        plan = self.plan
        if not self.trains:
            return (None,) * len(self.handed)
        if self.by_reference:
            return tuple(plan.loop.inputs[index] if plan.wanted[index] else None for index in self.handed)
        outputs, places = plan.backward.loop.outputs, [plan.wiring.results[index] for index in self.handed]
        return tuple(None if place is None else outputs[place] for place in places)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the backward sweep reads: indices of the Loop's inputs, and of the forward sweep's results."""
        if not self.trains:
            return (), ()
        if self.by_reference:
            return self.handed, ()
        wired = self.plan.wiring
        values = {place for pool, place in (*wired.kept, *wired.backward) if pool == Pool.VALUES}
        outputs = {place for pool, place in wired.kept if pool == Pool.OUTPUTS}
        for pool, place in wired.kept:
            if pool == Pool.BEFORES:
                first, after = self.befores[place]
                values.add(first)
                outputs.add(after)
        return tuple(index for index in self.handed if index in values), tuple(sorted(outputs))

    @cached_property
    def befores(self) -> tuple[tuple[int, int], ...]:
        """For each state whose sequence before each step is read, two indices.

        The first is that of its initial value among the Loop's inputs, the second that of its sequence after each step
        among the results.
        """
        values = {port.key: index for index, port in enumerate(self.plan.loop.inputs)}
        outputs = {port.key: index for index, port in enumerate(self.results)}
        return tuple(
            (values["state", state], outputs["sequence", name]) for state, name in self.plan.saved.befores.items()
        )

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
