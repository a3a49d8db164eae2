"""`OperatorPlan`: a plan whose sweeps pass nothing but tensors to each other, so that each can be an operator.

The states before each step are put together again in the backward sweep, where the eager bridge reads a view of the
states after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from leporello.engine.autograd import run_backward, run_sweep, storage_of, without_aliases
from leporello.engine.plan import Plan, Sweep
from leporello.engine.wiring import Pool
from leporello.loop.port import Port


@dataclass(eq=False)
class OperatorPlan:
    """A plan, and the inputs and outputs of its sweeps as operators."""

    plan: Plan

    @property
    def trains(self) -> bool:
        """Whether any gradient is wanted."""
        return any(self.plan.wanted)

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

    def run_plain(self, length: int, batch: int, values: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of the Loop, from the values of all its inputs, contiguous; no gradient is wanted."""
        plan = self.plan
        outputs, _ = run_sweep(plan.plain, length, batch, [values[place] for place in plan.plain_places])
        return own_memory(without_aliases(outputs, plan.plain.aliases, self.results, values), values)

    def run_forward(self, length: int, batch: int, values: Sequence[Tensor]) -> list[Tensor]:
        """The `results`, from the values of all inputs of the Loop, contiguous."""
        plan = self.plan
        outputs, _ = run_sweep(self.forward, length, batch, plan.wiring.forward_inputs(values))
        return own_memory(without_aliases(outputs, plan.forward.aliases, self.results, values), values)

    def kept_of(self, values: Sequence[Any], outputs: dict[int, Tensor]) -> Sequence[Any]:
        """What `run_backward` reads of the forward sweep; None for what is not there.

        values    of the Loop's inputs; None for those that are not in `reads`
        outputs   those results that are in `reads`, by index
        """
        befores = [
            torch.cat([values[first].unsqueeze(0), outputs[after][:-1]]) if after in outputs else None
            for first, after in self.befores
        ]
        return self.plan.wiring.kept_of(values, [outputs.get(place) for place in range(len(self.results))], befores)

    def run_backward(
        self,
        length: int,
        batch: int,
        values: Sequence[Any],
        outputs: dict[int, Tensor],
        gradients: Sequence[Tensor | None],
        weight: Tensor | None,
    ) -> list[Tensor]:
        """A gradient for each input that has one, in their order.

        values, outputs   as in `kept_of`
        gradients         of the Loop's outputs; None is zero
        weight            factors of what each step passes back
        """
        plan, kept = self.plan, self.kept_of(values, outputs)
        results = run_backward(plan, values, kept, gradients, length, batch, weight)
        return [results[place] for place in plan.wiring.results if place is not None]


def own_memory(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results as torch requires them of an operator: contiguous, and not aliased to an input or to another result."""
    storages = {storage_of(value) for value in inputs}
    owned = []
    for result in results:
        result = result.detach().contiguous()
        if result.storage_offset() or storage_of(result) in storages:
            result = result.clone()
        storages.add(storage_of(result))
        owned.append(result)
    return owned
