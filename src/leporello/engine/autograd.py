"""The bridge to autograd: a plan over a sequence as one differentiable function.

Its forward runs the forward sweep, its backward the backward sweep. Where a gradient is itself to be differentiated,
the backward Loop is run as a Loop of its own through the same bridge, so derivatives of every order are exact; weights
on the delay act in every order, as a `detach` between two steps does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.engine import reference
from leporello.engine.lagged import Lagged
from leporello.engine.plan import Plan, Sweep
from leporello.engine.state_gradient import ALL, ClipCount, Passing, entering
from leporello.engine.wiring import gradient_key, incoming_key
from leporello.errors import GraphGone
from leporello.loop.port import Port, PortValues, Role

Gradients = list[Tensor | None]


def call(plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing = ALL) -> list[Tensor]:
    """Outputs in the order of the Loop's, differentiable with respect to the inputs whose gradient the plan wants.

    values    in the order of the Loop's inputs
    passing   what each step passes back to the step before; a target applies it only if the plan's passes read it
    """
    if plan.target is None:
        counted = None
        if passing.limit is not None:
            counted = plan.note_clipped(ClipCount(), values, length, batch, passing.count)
        return reference.run(plan.loop, plan.step, values, length, batch, passing, counted)
    if torch.is_grad_enabled() and any(
        value.requires_grad and wanted for value, wanted in zip(values, plan.wanted, strict=True)
    ):
        return list(trained(plan, values, length, batch, passing))
    return plain(plan, values, length, batch)


def trained(plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
    """`call` for a plan with a target, where gradients are wanted."""
    outputs: Sequence[Tensor] = _Sweeps.apply(plan, length, batch, passing, *values)
    return outputs


def plain(plan: Plan, values: Sequence[Tensor], length: int, batch: int) -> list[Tensor]:
    """`call` for a plan with a target, without gradients."""
    sweep = plan.plain
    with torch.no_grad():
        outputs, _ = run_sweep(sweep, length, batch, [values[place] for place in plan.plain_places])
        return without_aliases(outputs, sweep.aliases, plan.loop.outputs, values)


def run_sweep(
    sweep: Sweep, length: int, batch: int, values: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    """Run a sweep: its outputs, and the states before each step that it was built to return.

    Autocast is switched off: the step was traced under it, so its graph has the casts already.

    values   in the order of `sweep.inputs`; None for a state is zeros
    """
    device = sweep.device
    if not torch.is_autocast_enabled(device):
        return _run(sweep, length, batch, values)
    with torch.autocast(device, enabled=False):
        return _run(sweep, length, batch, values)


def _run(sweep: Sweep, length: int, batch: int, values: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Run a sweep by its recording, or by its function."""
    done = None if sweep.recorded is None else sweep.recorded.run(length, batch, values)
    return sweep.function(length, batch, *values) if done is None else done


class _Sweeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, length: int, batch: int, passing: Passing, *values: Tensor) -> tuple[Tensor, ...]:
        wired, sweep, ports = plan.wiring, plan.forward, plan.loop.outputs
        outputs, befores = run_sweep(sweep, length, batch, wired.forward_inputs(values))
        outputs[: len(ports)] = results = without_aliases(outputs[: len(ports)], sweep.aliases, ports, values)
        ctx.call = plan, length, batch, passing
        ctx.save_for_backward(*values, *wired.kept_of(values, outputs, befores))
        ctx.set_materialize_grads(False)
        if wired.fixed:
            ctx.mark_non_differentiable(*[results[index] for index in wired.fixed])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        (plan, length, batch, passing), saved = ctx.call, saved_tensors(ctx)
        if saved[0].is_cuda:  # a thread of autograd's begins without a CUDA context, and cuBLAS warns of that
            torch.cuda.set_device(saved[0].device)
        count = len(plan.wanted)
        backward_pass = BackwardPass(plan, saved[:count], saved[count:], length, batch)
        run = backward_pass.differentiable if torch.is_grad_enabled() else backward_pass.by_sweep
        if passing.count == 1:
            input_gradients = run(gradients, passing.weights)
        else:
            input_gradients = backward_pass.by_groups(run, gradients, passing)
        return (None, None, None, None, *input_gradients)


def saved_tensors(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors that a forward sweep has saved; torch's errors about them become ones that name the cause."""
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


@dataclass(eq=False)
class BackwardPass:
    """The backward pass of one call: from the gradients of its outputs to those of its inputs, in their order.

    inputs   the call's values
    kept     what the forward sweep saved

    Its methods take the gradients of the outputs (None is zero) and the weights of one sweep, as in `Passing` (None
    where all are 1). They return a gradient for each input, or None.
    """

    plan: Plan
    inputs: Sequence[Tensor]
    kept: Sequence[Tensor | None]
    length: int
    batch: int

    def by_sweep(self, gradients: Sequence[Tensor | None], weight: Tensor | None) -> Gradients:
        """The gradients of the inputs, by the backward sweep."""
        plan, wired = self.plan, self.plan.wiring
        results = run_backward(plan, self.inputs, self.kept, gradients, self.length, self.batch, weight)
        if wired.clip_count is not None:
            plan.note_clipped(ClipCount(results[wired.clip_count]), self.inputs, self.length, self.batch)
        input_gradients = [None if place is None else results[place] for place in wired.results]
        for index in wired.aliased:  # no two gradients share memory
            input_gradients[index] = input_gradients[index].clone()  # type: ignore[union-attr]
        return input_gradients

    def differentiable(self, gradients: Sequence[Tensor | None], weight: Tensor | None) -> Gradients:
        """The same by running the backward Loop through `call`, so that the result can be differentiated again."""
        plan = self.plan
        incoming = incoming_gradients(list(enumerate(plan.loop.outputs)), gradients, self.length, self.batch)
        by_key = differentiable_backward(plan, self.inputs, incoming, self.length, self.batch, weight)
        # None where no output depends on an input, as in autograd
        return [
            by_key.get(gradient_key(port)) if wanted else None
            for port, wanted in zip(plan.loop.inputs, plan.wanted, strict=True)
        ]

    def by_groups(
        self, run: Callable[..., Gradients], gradients: Sequence[Tensor | None], passing: Passing
    ) -> Gradients:
        """The sum over the groups of losses, each of which has its own backward sweep; clips are counted over all.

        run   `by_sweep` or `differentiable`
        """
        plan, counted = self.plan, ClipCount()
        total: Gradients = [None] * len(plan.wanted)
        for group in range(passing.count):
            entered = [
                None if gradient is None else entering(gradient, passing.masks(group, port.kind == "sequence"))
                for port, gradient in zip(plan.loop.outputs, gradients, strict=True)
            ]
            part = run(entered, passing.one(group).weights)
            total = [_sum(before, term) for before, term in zip(total, part, strict=True)]
            counted = counted if plan.clipped is None else ClipCount(counted.count + plan.clipped.count)
        if plan.clipped is not None:
            plan.note_clipped(counted, self.inputs, self.length, self.batch, passing.count)
        return total


def run_backward(
    plan: Plan,
    values: Sequence[Tensor],
    kept: Sequence[Any],
    gradients: Sequence[Tensor | None],
    length: int,
    batch: int,
    weight: Tensor | None,
) -> list[Tensor]:
    """The outputs of a plan's backward sweep, in the order of its Loop's.

    values      of the Loop's inputs, as the forward sweep read them
    kept        what the forward sweep saved
    gradients   of the plan's outputs; None is zero
    weight      factors of what each step passes back, (length, batch); None for a plan that reads none
    """
    wired = plan.wiring
    incoming = incoming_gradients(wired.incoming, gradients, length, batch, zeros=False)
    if wired.lagged:
        assert plan.target is not None
        kept, (put, window) = list(kept), (plan.target.put_shifted, plan.target.in_place)
        for place, sequence, initial, in_place in wired.lagged:
            if kept[place] is None:
                shifted = values[sequence].contiguous()
                kept[place] = Lagged(shifted, values[initial], plan.loop.reverse, put, window if in_place else None)
    return run_sweep(plan.backward, length, batch, wired.backward_inputs(values, kept, incoming, weight))[0]


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two gradients, of which None is zero."""
    return second if first is None else first if second is None else first + second


def without_aliases(
    outputs: Sequence[Tensor], aliases: Sequence[int], ports: Sequence[Port], values: Sequence[Tensor]
) -> list[Tensor]:
    """The outputs, copied where they share memory with an input or with another output.

    Also copied is an output that is a view of a larger tensor, unless it is a sequence: a final state that is a view
    of the last step of a sequence would keep the whole sequence alive.

    aliases   indices of the outputs that may share memory; others are not looked at
    ports     of the outputs
    values    the inputs
    """
    results = list(outputs)
    storages: set[int] | None = None  # of all that is no alias, or one already looked at
    for index in aliases:
        if index >= len(results):
            continue
        output = results[index]
        if ports[index].kind != "sequence" and output.untyped_storage().nbytes() > output.nbytes:
            results[index] = output.clone()
            continue
        if storages is None:
            storages = {storage_of(value) for value in values}
            storages |= {storage_of(value) for place, value in enumerate(outputs) if place not in aliases}
        if storage_of(output) in storages:
            results[index] = output.clone()
        storages.add(storage_of(results[index]))
    return results


def storage_of(value: Tensor) -> int:
    """The identity of a tensor's storage: equal for tensors that share it."""
    identity: int = value.untyped_storage()._cdata
    return identity


def incoming_gradients(
    incoming: Sequence[tuple[int, Port]],
    gradients: Sequence[Tensor | None],
    length: int,
    batch: int,
    *,
    zeros: bool = True,
) -> list[Tensor | None]:
    """The gradients of all outputs as a sweep reads them: zeros where one that is read is None.

    Zeros of a sequence or total are one element, expanded. Outputs that are not read or not floating keep their None.

    incoming   outputs whose gradient is read, with their indices
    zeros      whether states get zeros too; a sweep reads None as a state of zeros
    """
    values = [None if gradient is None else gradient.resolve_neg() for gradient in gradients]
    for index, port in incoming:
        if values[index] is None and port.is_floating and (zeros or port.kind != "state"):
            shape = port.shape_of(length, batch)
            if port.kind == "state":
                values[index] = torch.zeros(shape, dtype=port.dtype, device=port.device)
            else:
                values[index] = torch.zeros((), dtype=port.dtype, device=port.device).expand(shape)
    return values


def differentiable_backward(
    plan: Plan,
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    length: int,
    batch: int,
    weight: Tensor | None,
    run: Callable[..., list[Tensor]] = call,
    is_wanted: Callable[[Tensor], bool] = lambda value: value.requires_grad,
) -> PortValues:
    """The gradients of the inputs by kind and name, from the backward Loop run with autograd on.

    gradients   of the outputs, with zeros for None, as `incoming_gradients` gives them
    run         runs a plan: `call`, or a function like it
    is_wanted   whether the gradient of a value of the backward Loop is wanted
    """
    befores = run(plan.with_states_before, inputs, length, batch, Passing(weight))[len(plan.loop.outputs) :]
    states = [port.name for port in plan.loop.inputs if port.kind == "state"]
    by_state = dict(zip(states, befores, strict=True))
    values = {port.key: value for port, value in zip(plan.loop.inputs, inputs, strict=True)}
    incoming = {incoming_key(port): value for port, value in zip(plan.loop.outputs, gradients, strict=True)}
    constants = plan.gradient.constants

    def value_of(port: Port) -> Tensor:
        """The value of an input of the backward Loop."""
        if port.role is Role.WEIGHT:
            assert weight is not None
            return weight
        if port.role is Role.STATE_BEFORE and port.of is not None and port.of.name in by_state:
            return by_state[port.of.name]
        if port.role in (Role.FORWARD_INPUT, Role.FORWARD_DRAW) and port.of is not None and port.of.key in values:
            return values[port.of.key]
        value = incoming.get(port.key)
        if value is None:
            value = values[port.key] if port.key in values else constants[port.name]
        return value

    loop = plan.differentiable_gradient
    reads = [value_of(port) for port in loop.inputs]
    by_port = dict(zip(loop.inputs, reads, strict=True))
    backward = plan.backward_plan(lambda port: is_wanted(by_port[port]))
    results = run(backward, reads, length, batch)
    return {port.key: value for port, value in zip(backward.loop.outputs, results, strict=True)}
