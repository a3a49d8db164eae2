"""The sweeps of a plan as operators registered with torch, so that compiled graphs can call them by a plan's name.

`leporello::plain_sweep` is the plain sweep. `leporello::forward_sweep` returns what the backward sweep reads as well,
and `leporello::backward_sweep` is its derivative. The results of an operator share no memory with each other or with
its inputs, as torch requires.

Known shortcomings: the states before each step are copied in the backward sweep, where the eager bridge reads a view of
the states after each step; the engine `reference` runs its steps a second time in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine import reference
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.operator_plan import own_memory
from leporello.engine.registered_plans import RegisteredPlan, registered
from leporello.engine.state_gradient import Passing
from leporello.errors import EngineRefusal
from leporello.loop.port import Port

library = torch.library.Library("leporello", "FRAGMENT")
library.define("plain_sweep(str plan, SymInt length, SymInt batch, Tensor[] values) -> Tensor[]")
library.define("forward_sweep(str plan, SymInt length, SymInt batch, Tensor[] values, Tensor? weight) -> Tensor[]")
library.define(
    "backward_sweep(str plan, SymInt length, SymInt batch, Tensor[] reads, Tensor?[] gradients, Tensor? weight)"
    " -> Tensor[]"
)


@torch.no_grad()
def _plain(name: str, length: int, batch: int, values: list[Tensor]) -> list[Tensor]:
    entry = registered(name)
    plan, inputs = entry.plan, entry.all_with_constants(values)
    if entry.by_reference:
        return own_memory(reference.run(plan.loop, plan.step, inputs, length, batch), inputs)
    return entry.run_plain(length, batch, inputs)


@torch.no_grad()
def _forward(name: str, length: int, batch: int, values: list[Tensor], weight: Tensor | None) -> list[Tensor]:
    """The forward operator: `entry.results`, and the keepalive tensor if any; `weight` is for its derivative alone."""
    entry = registered(name)
    plan, inputs = entry.plan, entry.all_with_constants(values)
    keepalive = [_keepalive(entry)] if entry.has_keepalive else []
    if entry.by_reference:
        return own_memory(reference.run(plan.loop, plan.step, inputs, length, batch), inputs) + keepalive
    return entry.run_forward(length, batch, inputs) + keepalive


@torch.no_grad()
def _backward(
    name: str, length: int, batch: int, reads: list[Tensor], gradients: list[Tensor | None], weight: Tensor | None
) -> list[Tensor]:
    """The backward operator: a gradient for each input that has one, in the order of `entry.gradients`.

    reads       what `_save_for_backward` has saved, without the weight
    gradients   of the Loop's outputs; None is zero
    """
    entry = registered(name)
    places = entry.reads[0]
    reads = reads[:-1] if entry.has_keepalive else reads
    values = entry.with_constants(places, [read.contiguous() for read in reads[: len(places)]])
    if entry.by_reference:
        input_gradients = in_fresh_thread(lambda: _by_reference(entry, length, batch, values, gradients, weight))
        return own_memory(input_gradients, [*reads, *_not_none(gradients)])
    outputs = dict(zip(entry.reads[1], reads[len(places) :], strict=True))
    input_gradients = entry.run_backward(length, batch, values, outputs, gradients, weight)
    return own_memory(input_gradients, [*reads, *_not_none(gradients), *_not_none([weight])])


def _by_reference(
    entry: RegisteredPlan,
    length: int,
    batch: int,
    values: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    weight: Tensor | None,
) -> list[Tensor]:
    """The gradients of the inputs: the steps are run again with torch's autograd, and differentiated.

    Autograd runs in this thread: the thread that waits for the result may be the one that autograd would use.
    """
    plan = entry.plan
    with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        leaves = [
            value.detach().requires_grad_() if wanted else value.detach()
            for value, wanted in zip(values, plan.wanted, strict=True)
        ]
        outputs = reference.run(plan.loop, plan.step, leaves, length, batch, Passing(weight))
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not pairs:
            return [torch.zeros_like(leaf) for leaf in wanted]
        results = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, results, strict=True)]


def _not_none(values: Sequence[Tensor | None]) -> list[Tensor]:
    return [value for value in values if value is not None]


class _PlanBuffer(bytearray):
    """The memory of a tensor, with a reference to a plan that lasts until the last tensor that uses it is freed."""

    plan: RegisteredPlan


def _keepalive(entry: RegisteredPlan) -> Tensor:
    """A tensor that keeps a plan alive: it is saved for the backward pass, which may run when the network is gone."""
    buffer = _PlanBuffer(1)
    buffer.plan = entry
    return torch.frombuffer(buffer, dtype=torch.uint8)


# ---- what tracing needs: fake results, and the derivative


def _empty(port: Port, length: Any, batch: Any, like: Sequence[Tensor]) -> Tensor:
    device = like[0].device if like else port.device
    return torch.empty(port.shape_of(length, batch), dtype=port.dtype, device=device)


def _fake_plain(name: str, length: Any, batch: Any, values: list[Tensor]) -> list[Tensor]:
    return [_empty(port, length, batch, values) for port in registered(name).results]


def _fake_forward(name: str, length: Any, batch: Any, values: list[Tensor], weight: Tensor | None) -> list[Tensor]:
    keepalive = [torch.empty(1, dtype=torch.uint8)] if registered(name).has_keepalive else []
    return _fake_plain(name, length, batch, values) + keepalive


def _fake_backward(name: str, length: Any, batch: Any, reads: list[Tensor], *_: Any) -> list[Tensor]:
    return [_empty(port, length, batch, reads) for port in registered(name).gradients if port is not None]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Save what the backward operator reads, in its order: inputs, results, the tensor that keeps the plan alive."""
    name, length, batch, values, weight = inputs
    entry = registered(name)
    reads = [value for index, value in zip(entry.handed, values, strict=True) if index in entry.reads[0]]
    keepalive = output[len(entry.results) :]
    ctx.save_for_backward(*reads, *(output[place] for place in entry.reads[1]), *keepalive, *_not_none([weight]))
    ctx.name, ctx.length, ctx.batch, ctx.has_weight = (
        name,
        length,
        batch,
        weight is not None,
    )  # the name holds no reference to the plan
    ctx.set_materialize_grads(False)
    count = len(entry.plan.loop.outputs)
    integers = [value for value, port in zip(output, entry.plan.loop.outputs, strict=False) if not port.is_floating]
    ctx.mark_non_differentiable(*integers, *output[count:])


def _derivative(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    """The gradients of the forward operator's arguments, by the backward operator; None for all but `values`."""
    entry, saved = registered(ctx.name), list(ctx.saved_tensors)
    weight = saved.pop() if ctx.has_weight else None
    incoming = gradients[: len(entry.plan.loop.outputs)]
    results = iter(
        torch.ops.leporello.backward_sweep(entry.name, ctx.length, ctx.batch, saved, incoming, weight)
        if any(gradient is not None for gradient in incoming)
        else []
    )
    return None, None, None, [None if port is None else next(results, None) for port in entry.gradients], None


def _refuse_second_derivative(ctx: Any, *gradients: Any) -> None:
    raise EngineRefusal(
        "a compiled graph has no gradients of gradients.", tries="call the network itself, outside of torch.compile"
    )


library.impl("plain_sweep", _plain, "CompositeExplicitAutograd")
library.impl("forward_sweep", _forward, "CompositeExplicitAutograd")
library.impl("backward_sweep", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("leporello::plain_sweep", _fake_plain, lib=library)
torch.library.register_fake("leporello::forward_sweep", _fake_forward, lib=library)
torch.library.register_fake("leporello::backward_sweep", _fake_backward, lib=library)
torch.library.register_autograd("leporello::forward_sweep", _derivative, setup_context=_save_for_backward, lib=library)
torch.library.register_autograd("leporello::backward_sweep", _refuse_second_derivative, lib=library)
