"""A call under the transforms of torch.func: grad, vmap, jvp and what is made of them.

The tensors of such a call are wrapped, and have no memory of their own. So the call is planned by a like one on zeros,
and `engine/transforms.py` runs the plan. The engine `reference` runs torch's operators, for which torch has rules.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.arguments import Call
from leporello.call.cell_key import cell_key
from leporello.call.checks import RangeChecks, classes_in_range, lengths_in_range, probability_in_range
from leporello.call.plan_cache import Network, keep
from leporello.call.signature import autocast_mode, fixed_axes, plan_signature, trace_signature
from leporello.call.stand_in import STAND_IN_ROWS, stand_in
from leporello.call.values import Gather, Results, gather_call, gather_function, names_of, passing_of, tree_function
from leporello.engine import autograd, targets, transforms
from leporello.engine.choice import refuse_writes
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.functorch_levels import one_of_all, plain_value, tracked
from leporello.engine.plan import Plan
from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.loop.state import leaves_of
from leporello.loop.tracing.cell_tensors import CELL_LOCK, tensors_replaced


@dataclass(frozen=True)
class TransformedCall:
    """What runs calls of one form.

    modules   of the cell, whose tables `gather` reads
    """

    plan: Plan
    gather: Gather
    in_trees: Any
    modules: tuple[nn.Module, ...]


def run_transformed(net: Network, call: Call, gradient: Method) -> Results:
    """Outputs and final state of a checked call."""
    _refuse_recording()
    planned = _planned(net, call, gradient)
    plan = planned.plan
    with CELL_LOCK:
        values = gather_call(planned.gather, plan.loop, call)
    passing = passing_of(call, gradient)
    run = autograd.call if plan.target is None else transforms.run
    return planned.in_trees(run(plan, values, call.length, call.batch, passing))


def _planned(net: Network, call: Call, gradient: Method) -> TransformedCall:
    """The plan of a call, made at the first call of its form, and what gathers its values."""
    cell, table = net.cell, net._plan_cache.transformed
    leaves = _leaves(call, cell)
    wanted = tuple(tracked(leaves))
    modes = (torch.is_grad_enabled(), gradient.plan_key, net.engine, *map(id, cell.modules()))
    key = (
        trace_signature(call, fixed_axes(call)), plan_signature(call, cell), cell_key(cell), wanted, modes,
    )  # fmt: skip
    if key not in table:
        _refuse_method(gradient, net.engine)
        plan = _plan(net, call, gradient, dict(zip(map(id, leaves), wanted, strict=True)))
        refuse_writes(plan.loop, "a transform of torch.func has no place for that", "eval(), or no transform")
        gather = gather_function(plan.loop, *names_of(call))
        keep(table, key, TransformedCall(plan, gather, tree_function(plan.loop), tuple(cell.modules())))
    found: TransformedCall = table[key]
    return found


def _leaves(call: Call, cell: nn.Module) -> list[Tensor]:
    """The tensors of a call."""
    leaves = [leaf for _, leaf in (*call.sequences, *call.states)] + [leaf.tensor for leaf in call.contexts]
    others = [call.lengths, call.resets, call.targets, call.coin, *leaves_of(call.initial)]
    return [*leaves, *(leaf for leaf in others if leaf is not None), *cell.parameters(), *cell.buffers()]


def _plan(net: Network, call: Call, gradient: Method, wanted: dict[int, bool]) -> Plan:
    """The plan of a call.

    wanted   by id of each of its tensors whether a gradient of it is wanted
    """
    grad, cast, device = torch.is_grad_enabled(), autocast_mode(call.device), call.device.type
    like = stand_in(call, lambda leaf: wanted.get(id(leaf), False))
    tensors = [*net.cell.parameters(), *net.cell.buffers()]
    plain = [(id(tensor), one_of_all(tensor), wanted[id(tensor)]) for tensor in tensors]

    def planned(rows: int) -> Plan:
        autocast: Any = nullcontext() if cast is None else torch.autocast(device, cast)
        instead = {key: tensor.requires_grad_(needed) for key, tensor, needed in plain}
        with torch.set_grad_enabled(grad), autocast, CELL_LOCK, tensors_replaced(net.cell, instead):
            plan, _ = net._plan_cache.plan(net.cell, like(rows), gradient, net.engine, free=False)
            if net.engine == "auto" and plan.target is not None and plan.target.kernels:
                plan.instead = targets.without_kernels()
            return plan

    plan = in_fresh_thread(lambda: planned(STAND_IN_ROWS))
    return in_fresh_thread(lambda: planned(call.batch)) if plan.loop.traced_for_one_batch else plan


def _refuse_recording() -> None:
    """Refuse a call that torch records as a graph, which would hold the results as constants."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        raise ArgumentError(
            "a call of the network under torch.func is recorded as a graph, by torch.func.linearize or make_fx.",
            tries="torch.func.jvp or vjp in the place of linearize; torch.compile in the place of make_fx",
        )


def _refuse_method(gradient: Method, engine: str) -> None:
    """Refuse a method that is more than one sweep back through time."""
    if not gradient.runs_once and torch.is_grad_enabled() and engine != "reference":
        raise ArgumentError(
            f"the gradient method {gradient!r} is not transformed by torch.func.",
            expected="lp.Full(), lp.Truncated(steps) or lp.RandomTruncated()",
            tries="net(inputs, gradient=lp.Full()); or torch.no_grad(), if no gradient is wanted",
        )


# ---- range checks


def _lengths(lengths: Tensor, length: int) -> Tensor:
    lengths_in_range(plain_value(lengths).flatten(), length)
    return lengths


def _classes(classes: Tensor, count: int, name: str, one_step: bool) -> Tensor:
    classes_in_range(plain_value(classes).flatten(0, -2), count, name, one_step)
    return classes


def _probability(forcing: Any, shape: str) -> Any:
    return probability_in_range(plain_value(forcing) if isinstance(forcing, Tensor) else forcing, shape)


TRANSFORMED = RangeChecks(_lengths, _classes, _probability)  # of wrapped tensors, whose numbers cannot be read
