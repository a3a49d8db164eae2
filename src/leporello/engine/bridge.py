"""The bridge to autograd: a Loop over a sequence as one differentiable function.

Forward runs the forward sweep, backward the backward sweep. Where a gradient is itself to be differentiated, the
backward loop is run as a loop of its own through the same bridge, so derivatives of every order are exact; weights on
the delay stand on it in every order, as a `detach` between two steps does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine.plan import Plan, Values
from leporello.loop.port import Port

WEIGHT = ("sequence", "call.weight")  # as the rewrite `weigh` names it


def call(plan: Plan, values: Sequence[Tensor], length: int, batch: int, weight: Tensor | None = None) -> list[Tensor]:
    """Outputs in the order of the loop's, differentiable with respect to the inputs the plan wants.

    weight   (length, batch): of what each step passes back to the step before, for a plan whose rewrite reads it
    """
    if torch.is_grad_enabled() and any(
        value.requires_grad and wanted for value, wanted in zip(values, plan.wanted, strict=True)
    ):
        return list(_Sweeps.apply(plan, length, batch, weight, *values))
    outputs, _ = plan.plain.run(_by_port(plan.loop.inputs, values), length, batch)
    return _apart(outputs, plan.loop.outputs, values)


def _by_port(ports: Sequence[Port], values: Sequence[Any]) -> Values:
    return {(port.kind, port.name): value for port, value in zip(ports, values, strict=True)}


class _Sweeps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, length: int, batch: int, weight: Tensor | None, *values: Tensor
    ) -> tuple[Tensor, ...]:
        outputs, befores = plan.forward.run(_by_port(plan.loop.inputs, values), length, batch, plan.saved.befores)
        own = _apart(outputs[: len(plan.loop.outputs)], plan.loop.outputs, values)
        handed = _by_port(plan.forward.loop.outputs, [*own, *outputs[len(own) :]])
        ctx.plan, ctx.length, ctx.batch, ctx.weight, ctx.count = plan, length, batch, weight, len(values)
        ctx.names, kept = _kept(plan, values, handed, befores)
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[o for o in own if not (o.is_floating_point() or o.is_complex())])
        return tuple(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        plan, kept = ctx.plan, ctx.saved_tensors
        inputs, handed = kept[: ctx.count], kept[ctx.count :]
        arriving = _arriving(plan, gradients, ctx.length, ctx.batch)
        if torch.is_grad_enabled():
            found = _differentiable_backward(plan, inputs, arriving, ctx.length, ctx.batch, ctx.weight)
        else:
            values = {**arriving, **dict(zip(ctx.names, handed, strict=True)), **_weighed(ctx.weight)}
            values.update(_invariants(plan, inputs))
            sweep = plan.backward
            results, _ = sweep.run(values, ctx.length, ctx.batch)
            found = _by_port(sweep.loop.outputs, results)
        return (
            None,
            None,
            None,
            None,
            *(_own(found, port, wanted) for port, wanted in zip(plan.loop.inputs, plan.wanted, strict=True)),
        )


def _apart(outputs: Sequence[Tensor], ports: Sequence[Port], values: Sequence[Tensor]) -> list[Tensor]:
    """Results in memory of their own: none is an input or part of another, so that none changes or outlives another.

    A final state that is the last place of a sequence would otherwise keep the whole sequence alive.
    """
    taken = {value.untyped_storage().data_ptr() for value in values}
    found = []
    for port, output in zip(ports, outputs, strict=True):
        home = output.untyped_storage().data_ptr()
        small = port.kind != "sequence" and output.untyped_storage().nbytes() > output.numel() * output.itemsize
        own = output.clone() if home in taken or small else output
        taken.add(own.untyped_storage().data_ptr())
        found.append(own)
    return found


def _kept(
    plan: Plan, values: Sequence[Tensor], handed: Values, befores: dict[str, Tensor]
) -> tuple[list, list[Tensor]]:
    """What the backward sweep reads beside gradients and invariants, by name, behind the inputs themselves."""
    given = _by_port(plan.loop.inputs, values)
    names, kept = [], []
    for port in plan.saved.backward.inputs:
        if port.kind != "sequence" or port.name.startswith("grad.") or (port.kind, port.name) == WEIGHT:
            continue
        prefix, _, name = port.name.partition(".")
        if prefix == "before":
            value = befores[name]
        elif prefix in ("input", "draw"):
            value = given["sequence" if prefix == "input" else "draw", name]
        else:
            value = handed["sequence", name if prefix == "output" else port.name]
        names.append(("sequence", port.name))
        kept.append(value)
    return names, [*values, *kept]


def _invariants(plan: Plan, inputs: Sequence[Tensor]) -> Values:
    found = _by_port(plan.loop.inputs, inputs)
    constants = {("invariant", name): value for name, value in plan.gradient.constants.items()}
    return constants | {key: value for key, value in found.items() if key[0] == "invariant"}


def _weighed(weight: Tensor | None) -> Values:
    return {} if weight is None else {WEIGHT: weight}


def _arriving(plan: Plan, gradients: Sequence[Tensor | None], length: int, batch: int) -> Values:
    """The outputs' gradients as the backward loop names them; zeros, without memory, where none arrived."""
    found: Values = {}
    for port, gradient in zip(plan.loop.outputs, gradients, strict=True):
        if not (port.dtype.is_floating_point or port.dtype.is_complex):
            continue
        rows = (batch,) if port.rows else ()
        shape = (length, *rows, *port.shape) if port.kind == "sequence" else (*rows, *port.shape)
        if gradient is None:
            gradient = torch.zeros((), dtype=port.dtype, device=port.device).expand(shape)
        key = {"sequence": ("sequence", f"grad.{port.name}"), "state": ("state", port.name)}
        found[key.get(port.kind, ("invariant", f"grad.{port.name}"))] = gradient
    return found


def _differentiable_backward(
    plan: Plan, inputs: Sequence[Tensor], arriving: Values, length: int, batch: int, weight: Tensor | None
) -> Values:
    """The backward sweep through the bridge itself, on values that autograd knows."""
    recording = plan.recording
    states = call(recording, inputs, length, batch, weight)[len(plan.loop.outputs) :]
    names = [f"before.{port.name}" for port in plan.loop.inputs if port.kind == "state"]
    values: Values = {**arriving, **_weighed(weight)}
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
