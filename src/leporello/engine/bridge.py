"""The bridge to autograd: a Loop over a sequence as one differentiable function.

Forward runs the forward sweep, backward the backward sweep. Where a gradient is itself to be differentiated, the
backward loop is run as a loop of its own through the same bridge, so derivatives of every order are exact; weights on
the delay stand on it in every order, as a `detach` between two steps does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.engine import reference
from leporello.engine.crossing import Noted
from leporello.engine.passing import ALL, Passing, entering
from leporello.engine.plan import Plan, Sweep, Values
from leporello.engine.wiring import WEIGHT, arriving, floats, taken
from leporello.errors import GraphGone
from leporello.loop.port import Port

Gradients = list[Tensor | None]


def call(plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing = ALL) -> list[Tensor]:
    """Outputs in the order of the loop's, differentiable with respect to the inputs the plan wants.

    passing   what each step passes back to the step before, for a plan whose rewrite reads it
    """
    if plan.engine == "reference":
        noted = None if passing.limit is None else plan.note(Noted(), values, length, batch, passing.count)
        return reference.run(plan.loop, plan.step, values, length, batch, passing, noted)
    if torch.is_grad_enabled() and any(
        value.requires_grad and wanted for value, wanted in zip(values, plan.wanted, strict=True)
    ):
        return list(trained(plan, values, length, batch, passing))
    return plain(plan, values, length, batch)


def trained(plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
    """The same, for a call of which it is known that gradients are wanted."""
    found: Sequence[Tensor] = _Sweeps.apply(plan, length, batch, passing, *values)
    return found


def plain(plan: Plan, values: Sequence[Tensor], length: int, batch: int) -> list[Tensor]:
    """The same, without gradients."""
    sweep = plan.plain
    with torch.no_grad():
        outputs, _ = run_sweep(sweep, length, batch, [values[place] for place in plan.plain_places])
        return apart(outputs, sweep.shared, plan.loop.outputs, values)


def run_sweep(
    sweep: Sweep, length: int, batch: int, values: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    """Autocast has had its say in the trace."""
    device = sweep.device
    if not torch.is_autocast_enabled(device):
        return sweep.function(length, batch, *values)
    with torch.autocast(device, enabled=False):
        return sweep.function(length, batch, *values)


class _Sweeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, length: int, batch: int, passing: Passing, *values: Tensor) -> tuple[Tensor, ...]:
        wired, sweep = plan.wiring, plan.forward
        outputs, befores = run_sweep(sweep, length, batch, [values[place] for place in wired.forward])
        count = len(plan.loop.outputs)
        own = apart(outputs[:count], sweep.shared, plan.loop.outputs, values)
        kept = taken(wired.kept, (values, [*own, *outputs[count:]], befores))
        ctx.plan, ctx.length, ctx.batch, ctx.passing = plan, length, batch, passing
        ctx.save_for_backward(*values, *kept)
        ctx.set_materialize_grads(False)
        if wired.fixed:
            ctx.mark_non_differentiable(*[own[index] for index in wired.fixed])
        return tuple(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        plan, saved, passing = ctx.plan, record_of(ctx), ctx.passing
        inputs, kept = saved[: len(plan.wanted)], saved[len(plan.wanted) :]
        back = Back(plan, inputs, kept, ctx.length, ctx.batch)
        sweep = back.differentiable if torch.is_grad_enabled() else back.swept
        if passing.count == 1:
            own = sweep(gradients, passing.weights)
        else:
            own = back.by_groups(sweep, gradients, passing)
        return (None, None, None, None, *own)


def record_of(ctx: Any) -> tuple[Tensor, ...]:
    """What a forward sweep has kept; torch's own words for its absence tell nothing of steps."""
    try:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
    except RuntimeError as error:
        if "second time" in str(error):
            raise GraphGone(
                "a gradient goes back through the steps of a call for a second time.",
                because="what the call had kept was freed when the first one had gone back",
                tries="lp.detach(state) before a state goes into the next call; lp.stream, which does it; or "
                "backward() once for all losses that go back through one call",
            ) from error
        if "modified by an inplace operation" in str(error):
            raise GraphGone(
                "a tensor that a call has read was changed before its gradient went back.",
                because=str(error).split("\n")[0],
                tries="backward() before optimizer.step()",
            ) from error
        raise
    return saved


@dataclass(frozen=True, eq=False)
class Back:
    """The way back of one call: from the gradients of its outputs to those of its inputs, in their order.

    inputs, kept   the call's values, and what the forward sweep handed over
    """

    plan: Plan
    inputs: Sequence[Tensor]
    kept: Sequence[Tensor]
    length: int
    batch: int

    def swept(self, gradients: Sequence[Tensor | None], weight: Tensor | None) -> Gradients:
        """By the backward sweep."""
        plan, wired = self.plan, self.plan.wiring
        heard = heard_of(wired.heard, gradients, self.length, self.batch, zeros=False)
        pools = (self.inputs, (), (), self.kept, heard, wired.constants, (weight,))
        results, _ = run_sweep(plan.backward, self.length, self.batch, taken(wired.backward, pools))
        if wired.clipped is not None:
            plan.note(Noted(results[wired.clipped]), self.inputs, self.length, self.batch)
        return _distinct([None if place is None else results[place] for place in wired.results])

    def differentiable(self, gradients: Sequence[Tensor | None], weight: Tensor | None) -> Gradients:
        """By a loop of its own, to be differentiated again."""
        plan = self.plan
        heard = heard_of(list(enumerate(plan.loop.outputs)), gradients, self.length, self.batch)
        found = _differentiable_backward(plan, self.inputs, heard, self.length, self.batch, weight)
        return [_own(found, port, wanted) for port, wanted in zip(plan.loop.inputs, plan.wanted, strict=True)]

    def by_groups(
        self, sweep: Callable[..., Gradients], gradients: Sequence[Tensor | None], passing: Passing
    ) -> Gradients:
        """The sum over the groups of losses, each carried back by a sweep of its own."""
        plan, acted = self.plan, Noted()
        total: Gradients = [None] * len(plan.wanted)
        for group in range(passing.count):
            entered = [
                None if gradient is None else entering(gradient, passing.masks(group, port.kind == "sequence"))
                for port, gradient in zip(plan.loop.outputs, gradients, strict=True)
            ]
            found = sweep(entered, passing.one(group).weights)
            total = [_added(one, other) for one, other in zip(total, found, strict=True)]
            acted = acted if plan.acted is None else Noted(acted.count + plan.acted.count)
        if plan.acted is not None:
            plan.note(acted, self.inputs, self.length, self.batch, passing.count)
        return total


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def apart(
    outputs: Sequence[Tensor], shared: Sequence[int], ports: Sequence[Port], values: Sequence[Tensor]
) -> list[Tensor]:
    """Results in memory of their own: none is an input or part of another, so that none changes or outlives another.

    A final state that is the last place of a sequence would otherwise keep the whole sequence alive.

    shared   the outputs that need a look
    """
    found = list(outputs)
    if not any(index < len(found) for index in shared):
        return found
    homes = {value.untyped_storage().data_ptr() for value in values}
    homes |= {value.untyped_storage().data_ptr() for index, value in enumerate(outputs) if index not in shared}
    for index in shared:
        if index < len(found):
            output = found[index]
            whole = ports[index].kind == "sequence" or output.untyped_storage().nbytes() <= output.nbytes
            if output.untyped_storage().data_ptr() in homes or not whole:
                found[index] = output.clone()
            homes.add(found[index].untyped_storage().data_ptr())
    return found


def _distinct(gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Gradients of which no two are the same memory, though two values may have the same gradient."""
    seen: set[int] = set()
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            if gradient.data_ptr() in seen:
                gradients[index] = gradient = gradient.clone()
            seen.add(gradient.data_ptr())
    return gradients


def heard_of(
    heard: Sequence[tuple[int, Port]],
    gradients: Sequence[Tensor | None],
    length: int,
    batch: int,
    *,
    zeros: bool = True,
) -> list[Tensor | None]:
    """The outputs' gradients, as they lie in memory; zeros, without any, where none arrived at one that is heard.

    zeros   whether states need them; a sweep takes None for a state of zeros
    """
    found = [None if gradient is None else gradient.resolve_neg() for gradient in gradients]
    for index, port in heard:
        if found[index] is None and floats(port) and (zeros or port.kind != "state"):
            rows = (batch,) if port.rows else ()
            shape = (length, *rows, *port.shape) if port.kind == "sequence" else (*rows, *port.shape)
            if port.kind == "state":
                found[index] = torch.zeros(shape, dtype=port.dtype, device=port.device)
            else:
                found[index] = torch.zeros((), dtype=port.dtype, device=port.device).expand(shape)
    return found


def _by_port(ports: Sequence[Port], values: Sequence[Any]) -> Values:
    return {(port.kind, port.name): value for port, value in zip(ports, values, strict=True)}


def _invariants(plan: Plan, inputs: Sequence[Tensor]) -> Values:
    found = _by_port(plan.loop.inputs, inputs)
    constants = {("invariant", name): value for name, value in plan.gradient.constants.items()}
    return constants | {key: value for key, value in found.items() if key[0] == "invariant"}


def _differentiable_backward(
    plan: Plan,
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    length: int,
    batch: int,
    weight: Tensor | None,
) -> Values:
    """The backward sweep through the bridge itself, on values that autograd knows."""
    recording = plan.recording
    states = call(recording, inputs, length, batch, Passing(weight))[len(plan.loop.outputs) :]
    names = [f"before.{port.name}" for port in plan.loop.inputs if port.kind == "state"]
    values: Values = {} if weight is None else {WEIGHT: weight}
    for port, gradient in zip(plan.loop.outputs, gradients, strict=True):
        if gradient is not None:
            values[arriving(port)] = gradient
    values.update({("sequence", name): state for name, state in zip(names, states, strict=True)})
    for port, value in zip(plan.loop.inputs, inputs, strict=True):
        prefix = {"sequence": "input.", "draw": "draw."}.get(port.kind)
        if prefix:
            values["sequence", prefix + port.name] = value
    values.update(_invariants(plan, inputs))
    again = plan.pure_backward(lambda port: values[port.kind, port.name].requires_grad)
    found = call(again, [values[port.kind, port.name] for port in plan.differentiable_gradient.inputs], length, batch)
    return _by_port(again.loop.outputs, found)


def _own(found: Values, port: Port, wanted: bool) -> Tensor | None:
    """The gradient of one input; None where nothing depends on it, as autograd has it."""
    if not wanted:
        return None
    return found.get(("total" if port.kind == "invariant" else port.kind, port.name))
