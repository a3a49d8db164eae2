"""`RegisteredPlan`: a plan that graph operators find by its name, and what its sweeps take and give as operators.

The registry holds plans weakly: a plan lives as long as somebody holds its `RegisteredPlan`.
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
    """A plan that operators find by its name, for as long as somebody holds this.

    The name tells the form of all results, so that what torch keeps on disk for a graph fits whenever it is found.
    """

    plan: Plan

    def __post_init__(self) -> None:
        description = repr((self.plan.engine, self.plan.wanted, self.results, self.gradients, self.reads))
        self.name = f"{next(_numbers)}.{hashlib.sha256(description.encode()).hexdigest()[:16]}"
        _named[self.name] = self

    @property
    def trains(self) -> bool:
        return any(self.plan.wanted)

    @property
    def pledged(self) -> bool:
        """Whether the forward sweep gives out a pledge, which holds the plan until the backward sweep has run."""
        return self.trains and all(torch.empty(0, device=port.device).is_cpu for port in self.plan.loop.inputs)

    @property
    def by_reference(self) -> bool:
        return self.plan.target is None

    @cached_property
    def handed(self) -> tuple[int, ...]:
        """Places of the loop's inputs that are handed in; the others are constants of the step."""
        loop = self.plan.loop
        ports = enumerate(loop.inputs)
        return tuple(i for i, port in ports if port.kind != "invariant" or port.name not in loop.constants)

    @cached_property
    def forward(self) -> Sweep:
        return self.plan.forward.without_befores()

    @cached_property
    def results(self) -> tuple[Port, ...]:
        """What the forward sweep gives out: the loop's outputs, then what only the backward sweep reads."""
        kept = self.trains and not self.by_reference
        return self.plan.forward.loop.outputs if kept else self.plan.loop.outputs

    @cached_property
    def gradients(self) -> tuple[Port | None, ...]:
        """For each input that is handed in the form of its gradient, None where it has none."""
        plan = self.plan
        if not self.trains:
            return (None,) * len(self.handed)
        if self.by_reference:
            return tuple(plan.loop.inputs[index] if plan.wanted[index] else None for index in self.handed)
        made, places = plan.backward.loop.outputs, [plan.wiring.results[index] for index in self.handed]
        return tuple(None if place is None else made[place] for place in places)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the backward sweep reads: places among the loop's inputs, and among the forward sweep's results."""
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
        """For each state whose sequence before each step is read: its first value, and its sequence after each step."""
        values = {port.key: index for index, port in enumerate(self.plan.loop.inputs)}
        outputs = {port.key: index for index, port in enumerate(self.results)}
        return tuple(
            (values["state", state], outputs["sequence", name]) for state, name in self.plan.saved.befores.items()
        )

    def filled(self, places: Sequence[int], values: Sequence[Tensor]) -> list[Any]:
        """Values in the order of the loop's inputs, with its constants; None where there is none."""
        loop = self.plan.loop
        found: list[Any] = [loop.constants.get(port.name) for port in loop.inputs]
        for place, value in zip(places, values, strict=True):
            found[place] = value
        return found

    def all_filled(self, values: Sequence[Tensor]) -> list[Tensor]:
        return self.filled(self.handed, [value.contiguous() for value in values])


def registered(name: str) -> RegisteredPlan:
    """The plan of that name."""
    found = _named.get(name)
    if found is None:
        raise EngineRefusal(
            "the network of a compiled graph is gone.",
            tries="keep the network for as long as what was compiled of it runs, backward included",
        )
    return found
