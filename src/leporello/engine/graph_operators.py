"""The sweeps of a plan as operators registered with torch: a compiled graph holds them, with tensors and names.

`leporello::plain_sweep` runs a plan forward, `leporello::forward_sweep` does so and gives out what the backward sweep
reads, `leporello::backward_sweep` runs it back; the last is the derivative of the second. An operator's results have
memory of their own, as torch requires of such operators.

Known shortcomings: the states before each step are copied in the backward sweep, where the eager bridge reads a view of
the states after each step; the engine `reference` runs its steps a second time to go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine import reference
from leporello.engine.autograd import incoming_gradients, run_sweep, storage_of, without_aliases
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.registered_plans import RegisteredPlan, registered
from leporello.engine.state_gradient import Passing
from leporello.engine.wiring import taken
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
    known = registered(name)
    plan, whole = known.plan, known.all_filled(values)
    if known.by_reference:
        return _own_memory(reference.run(plan.loop, plan.step, whole, length, batch), whole)
    outputs, _ = run_sweep(plan.plain, length, batch, [whole[place] for place in plan.plain_places])
    return _own_memory(without_aliases(outputs, plan.plain.aliases, known.results, whole), whole)


@torch.no_grad()
def _forward(name: str, length: int, batch: int, values: list[Tensor], weight: Tensor | None) -> list[Tensor]:
    known = registered(name)
    plan, whole = known.plan, known.all_filled(values)
    pledge = [_pledge(known)] if known.pledged else []
    if known.by_reference:
        return _own_memory(reference.run(plan.loop, plan.step, whole, length, batch), whole) + pledge
    outputs, _ = run_sweep(known.forward, length, batch, [whole[place] for place in plan.wiring.forward])
    return _own_memory(without_aliases(outputs, plan.forward.aliases, known.results, whole), whole) + pledge


@torch.no_grad()
def _backward(
    name: str, length: int, batch: int, reads: list[Tensor], gradients: list[Tensor | None], weight: Tensor | None
) -> list[Tensor]:
    known = registered(name)
    plan, wired = known.plan, known.plan.wiring if not known.by_reference else None
    places = known.reads[0]
    reads = reads[:-1] if known.pledged else reads
    values = known.filled(places, [read.contiguous() for read in reads[: len(places)]])
    if wired is None:
        found = in_fresh_thread(lambda: _by_reference(known, length, batch, values, gradients, weight))
        return _own_memory(found, [*reads, *_there(gradients)])
    outputs: list[Any] = [None] * len(known.results)
    for place, value in zip(known.reads[1], reads[len(places) :], strict=True):
        outputs[place] = value
    befores = [
        torch.cat([values[first].unsqueeze(0), outputs[after][:-1]]) if outputs[after] is not None else None
        for first, after in known.befores
    ]
    kept = taken(wired.kept, (values, outputs, befores))
    incoming = incoming_gradients(wired.incoming, gradients, length, batch, zeros=False)
    pools = (values, (), (), kept, incoming, wired.constants, (weight,))
    results, _ = run_sweep(plan.backward, length, batch, taken(wired.backward, pools))
    found = [results[place] for place in wired.results if place is not None]
    return _own_memory(found, [*reads, *_there(gradients), *_there([weight])])


def _by_reference(
    known: RegisteredPlan,
    length: int,
    batch: int,
    values: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    weight: Tensor | None,
) -> list[Tensor]:
    """The steps once more, with autograd's own record of them, gone back in this thread: the one that waits for it may
    be the one that autograd would use.
    """
    plan = known.plan
    with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        leaves = [
            value.detach().requires_grad_() if wanted else value.detach()
            for value, wanted in zip(values, plan.wanted, strict=True)
        ]
        outputs = reference.run(plan.loop, plan.step, leaves, length, batch, Passing(weight))
        heard = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not heard:
            return [torch.zeros_like(leaf) for leaf in wanted]
        made = torch.autograd.grad([o for o, _ in heard], wanted, [g for _, g in heard], allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, made, strict=True)]


def _there(values: Sequence[Tensor | None]) -> list[Tensor]:
    return [value for value in values if value is not None]


class _Held(bytearray):
    """Memory of a tensor that holds a plan: it goes with the last tensor that lies in it."""

    plan: RegisteredPlan


def _pledge(known: RegisteredPlan) -> Tensor:
    """Who saves it for the backward sweep keeps the plan, though its network may be gone by then."""
    held = _Held(1)
    held.plan = known
    return torch.frombuffer(held, dtype=torch.uint8)


def _own_memory(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results as an operator gives them: each a whole piece of memory, not that of an input or of another."""
    storages = {storage_of(value) for value in inputs}
    owned = []
    for result in results:
        result = result.detach().contiguous()
        if result.storage_offset() or storage_of(result) in storages:
            result = result.clone()
        storages.add(storage_of(result))
        owned.append(result)
    return owned


# ---- what a graph is made with: forms without numbers, and the derivative


def shape_of(port: Port, length: Any, batch: Any) -> tuple[Any, ...]:
    """Of an input or output with so many steps and rows."""
    rows = (batch,) if port.rows else ()
    return (length, *rows, *port.shape) if port.kind in ("sequence", "draw") else (*rows, *port.shape)


def _empty(port: Port, length: Any, batch: Any, like: Sequence[Tensor]) -> Tensor:
    device = like[0].device if like else port.device
    return torch.empty(shape_of(port, length, batch), dtype=port.dtype, device=device)


def _fake_plain(name: str, length: Any, batch: Any, values: list[Tensor]) -> list[Tensor]:
    return [_empty(port, length, batch, values) for port in registered(name).results]


def _fake_forward(name: str, length: Any, batch: Any, values: list[Tensor], weight: Tensor | None) -> list[Tensor]:
    pledge = [torch.empty(1, dtype=torch.uint8)] if registered(name).pledged else []
    return _fake_plain(name, length, batch, values) + pledge


def _fake_backward(name: str, length: Any, batch: Any, reads: list[Tensor], *_: Any) -> list[Tensor]:
    return [_empty(port, length, batch, reads) for port in registered(name).gradients if port is not None]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    name, length, batch, values, weight = inputs
    known = registered(name)
    reads = [value for index, value in zip(known.handed, values, strict=True) if index in known.reads[0]]
    pledge = output[len(known.results) :]
    ctx.save_for_backward(*reads, *(output[place] for place in known.reads[1]), *pledge, *_there([weight]))
    ctx.name, ctx.length, ctx.batch, ctx.weighed = name, length, batch, weight is not None  # a name holds no plan
    ctx.set_materialize_grads(False)
    count = len(known.plan.loop.outputs)
    still = [value for value, port in zip(output, known.plan.loop.outputs, strict=False) if not port.is_floating]
    ctx.mark_non_differentiable(*still, *output[count:])


def _derivative(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    known, saved = registered(ctx.name), list(ctx.saved_tensors)
    weight = saved.pop() if ctx.weighed else None
    heard = gradients[: len(known.plan.loop.outputs)]
    found = iter(
        torch.ops.leporello.backward_sweep(known.name, ctx.length, ctx.batch, saved, heard, weight)
        if any(gradient is not None for gradient in heard)
        else []
    )
    return None, None, None, [None if port is None else next(found, None) for port in known.gradients], None


def _no_second(ctx: Any, *gradients: Any) -> None:
    raise EngineRefusal(
        "a compiled graph has no gradients of gradients.", tries="call the network itself, outside of torch.compile"
    )


library.impl("plain_sweep", _plain, "CompositeExplicitAutograd")
library.impl("forward_sweep", _forward, "CompositeExplicitAutograd")
library.impl("backward_sweep", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("leporello::plain_sweep", _fake_plain, lib=library)
torch.library.register_fake("leporello::forward_sweep", _fake_forward, lib=library)
torch.library.register_fake("leporello::backward_sweep", _fake_backward, lib=library)
torch.library.register_autograd("leporello::forward_sweep", _derivative, setup_context=_remember, lib=library)
torch.library.register_autograd("leporello::backward_sweep", _no_second, lib=library)
