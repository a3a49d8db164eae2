"""A call while torch.compile makes a graph: no Python of ours is in the graph, only `leporello::recurrence`.

The compiler reads `in_graph` line by line, so it holds nothing but lists of tensors, names and plain values. The
operator does what an eager call does, on fake tensors, which hold no values: it checks the arguments, finds a plan, and
leaves the sweep operators of `engine/compiled_sweeps.py` in the graph, with what they read.

Not compiled: a PackedSequence; a gradient method with sweeps of its own. Gradients of gradients: torch has none of what
it compiled.
"""

from __future__ import annotations

import itertools
import os
import uuid
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn.utils.rnn import PackedSequence

from leporello.call.arguments import Call, checked_call
from leporello.call.cached_call import CachedCall
from leporello.call.cell_key import OF_EVERY_MODULE
from leporello.call.exported import run_as_operator
from leporello.call.graph_arguments import IN_GRAPH, constant, flatten, unflatten
from leporello.call.inputs import ArgumentAxes, map_tensors
from leporello.call.plan_cache import Network, detached_for, network_by_handle
from leporello.call.signature import autocast_mode, fixed_axes, plan_signature, trace_signature
from leporello.call.stand_in import STAND_IN_ROWS, stand_in
from leporello.call.values import Results, gather_call, gather_function, names_of, passing_of, tree_function
from leporello.engine.choice import refuse_writes
from leporello.engine.compiled_sweeps import library
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.plan import Plan
from leporello.engine.registered_plans import RegisteredPlan
from leporello.errors import ArgumentError, EngineRefusal, LeporelloError
from leporello.gradient.method import Method
from leporello.loop.state import Tree, without_unknown_types
from leporello.loop.step import place_of
from leporello.loop.tracing.cell_tensors import CELL_LOCK, tensors_replaced

UNCOMPILED = ("a compiled or exported graph would not", "eval(); or call the network outside of torch.compile")
CALLABLE = "callable"  # in the place of an attribute that is compared by whether it is there
_process = uuid.uuid4().hex
_numbers = itertools.count()
_graph_calls: weakref.WeakValueDictionary[str, GraphCall] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class GraphCall:
    """A call in a graph, without its tensors.

    handle      of the network
    arguments   the skeleton of its arguments (see `graph_arguments`)
    results     the skeleton of outputs and final state, once the call has been traced
    cached      by signature, what runs the call: one graph may be traced several times, in other modes
    """

    handle: str
    arguments: Any
    one_step: bool
    results: Any = None
    cached: dict[Any, tuple[RegisteredPlan, CachedCall]] = field(default_factory=dict)


# ---- what the compiler reads


def in_graph(
    net: Any,
    inputs: Tree,
    state: Tree,
    lengths: Any,
    resets: Any,
    targets: Any,
    forcing: Any,
    draws: Any,
    steps: Any = None,
    time: Any = None,
    context: Tree = None,
    one_step: bool = False,
) -> tuple[Tree, Tree]:
    """Outputs and final state of a network's call, as the network gives them; the arguments are the call's own."""
    lengths = torch.tensor(lengths) if isinstance(lengths, (list, tuple)) else lengths
    if isinstance(forcing, float) and forcing != 0 and forcing != 1:
        forcing = torch.full((), forcing)  # so that another probability needs no other graph
    tensors: list[Tensor] = []
    skeleton = flatten((inputs, state, lengths, resets, targets, forcing, draws, time, context), tensors)
    guard([net, net.gradient, *net.cell.modules()], attributes(net._handle, type(net.gradient).__name__))
    name = register_call(net._handle, skeleton, one_step)
    held = [*net.cell.parameters(), *net.cell.buffers()]
    recurrence = exported_recurrence if torch.compiler.is_exporting() else torch.ops.leporello.recurrence
    results = recurrence(name, tensors, held, steps)
    outputs, final = unflatten(result_skeleton(name), iter(results))
    return outputs, final


def refuse_own_method(gradient: Method | None) -> None:
    if gradient is not None:
        raise ArgumentError(
            "the argument 'gradient' of a call is not compiled.",
            came=repr(gradient),
            tries="lp.Recurrent(cell, gradient=...), or call the network outside of torch.compile",
        )


def common_call(inputs: Tree, lengths: Any, resets: Any, axes: ArgumentAxes) -> Call:
    """A `Call` without a state, for two networks over one sequence: inputs and resets time first, lengths checked.

    Nothing else is checked: each of the networks checks its own call.
    """
    leaves: list[Tensor] = []
    flatten(inputs, leaves)
    inputs, resets = axes.to_time_first(inputs), axes.to_time_first(resets)
    length, batch = leaves[0].shape[:2][:: -1 if axes.batch_first else 1]
    if lengths is not None:
        lengths = torch.ops.leporello.lengths_in_range(torch.as_tensor(lengths), length).to(leaves[0].device)
    return Call(inputs, None, length, batch, leaves[0].device, lengths=lengths, resets=resets)


def guard(parts: Sequence[Any], known: Sequence[tuple[int, str, Any]]) -> None:
    """Read the attributes a plan depends on: the compiler then makes another graph when one has changed.

    It has no result: the comparisons are what the compiler guards on.

    parts   the network, its gradient method, and the modules of its cell
    known   as `attributes` gives it
    """
    for place, name, value in known:
        attribute = getattr(parts[place], name)
        if (attribute is None) if value == CALLABLE else (flatten(attribute, []) != value):
            return


# ---- what runs while the compiler reads


@torch.compiler.assume_constant_result
def attributes(handle: str, method: str) -> tuple[tuple[int, str, Any], ...]:
    """The attributes of a network, its gradient method and the modules of its cell that a plan depends on.

    Each is the index of its owner among the `parts` of `guard`, its name, and its skeleton, or CALLABLE.

    method   the name of the method's class; not used, but the compiler guards on what it reads for an argument
    """
    net = network_by_handle(handle)
    options = {"engine": net.engine, "batch_first": net.batch_first}
    parts = [options, getattr(net.gradient, "__dict__", {}), *map(vars, net.cell.modules())]
    known: list[tuple[int, str, Any]] = []
    for place, part in enumerate(parts):
        for name, value in part.items():
            if name in OF_EVERY_MODULE:
                continue
            if _is_plain(value):
                known.append((place, name, flatten(value, [])))
            elif callable(value):
                known.append((place, name, CALLABLE))
    return tuple(known)


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values())) and all(map(_is_plain, value))
    return value is None or (isinstance(value, (bool, int, float, str)) and value == value)  # NaN equals nothing


@torch.compiler.assume_constant_result
def register_call(handle: str, skeleton: Any, one_step: bool) -> str:
    """Register a call in a graph, which lives as long as the network's plan cache, and return its new name.

    The name is unique among processes: torch keeps graphs on disk by their content, and must not take one for another.
    """
    name = f"{_process}.{os.getpid()}.{next(_numbers)}"
    graph_call = GraphCall(handle, constant(skeleton), one_step)
    _graph_calls[name] = network_by_handle(handle)._plan_cache.graph_calls[name] = graph_call
    return name


@torch.compiler.assume_constant_result
def result_skeleton(name: str) -> Any:
    return _graph_calls[name].results


# ---- the operator

library.define("recurrence(str call, Tensor[] tensors, Tensor[] held, SymInt? steps) -> Tensor[]")


def _recurrence(name: str, tensors: list[Tensor], held: list[Tensor], steps: Any = None) -> list[Tensor]:
    """The call, on whatever tensors the graph is traced with: a composite operator.

    Returns the tensors of outputs and final state; their skeleton is set as `results` of the `GraphCall`.

    name      of the registered call
    tensors   of its arguments
    held      what stands for the cell's parameters and buffers
    """
    graph_call = _graph_calls[name]
    net, one_step = network_by_handle(graph_call.handle), graph_call.one_step
    values = unflatten(graph_call.arguments, iter(tensors))
    inputs, state, lengths, resets, targets, forcing, draws, time, context = values
    _refuse_packed(inputs)
    arguments = {"resets": resets, "targets": targets, "forcing": forcing, "draws": draws, "time": time}
    arguments["context"] = context
    if not one_step:
        arguments |= {"lengths": lengths, "steps": steps, "batch_first": net.batch_first}
    arguments |= {"inputs": inputs, "state": state, "one_step": one_step, "range_checks": IN_GRAPH}
    tensors_of_cell = [*net.cell.parameters(), *net.cell.buffers()]
    instead = dict(zip(map(id, tensors_of_cell), held, strict=True))
    try:
        with CELL_LOCK, tensors_replaced(net.cell, instead):
            call = checked_call(net.cell, **arguments)
    except LeporelloError:
        _refuse_in_numbers(net.cell, arguments)
        raise
    outputs, final = _run(net, graph_call, detached_for(call, net.gradient), instead)
    if one_step:
        outputs = map_tensors(lambda leaf: leaf.squeeze(0), outputs)
    elif net.batch_first:
        outputs = map_tensors(lambda leaf: leaf.transpose(0, 1), outputs)
    results: list[Tensor] = []
    graph_call.results = constant(flatten((outputs, final), results))
    return results


library.impl("recurrence", _recurrence, "CompositeImplicitAutograd")


@torch.compiler.allow_in_graph
def exported_recurrence(name: str, tensors: list[Tensor], held: list[Tensor], steps: Any = None) -> list[Tensor]:
    """The same for torch.export, which would keep the operator, though no other process knows its call by name."""
    return _recurrence(name, tensors, held, steps)


def _run(net: Network, graph_call: GraphCall, call: Call, instead: dict[int, Tensor]) -> Results:
    """Outputs and final state of a call, by a sweep operator; the plan is made at the first call of a signature.

    instead   by id of each parameter and buffer of the cell the tensor that stands for it in the graph
    """
    if torch.compiler.is_exporting():
        return _exported(net, call, instead)
    _refuse_method(net)
    key = (trace_signature(call, fixed_axes(call)), plan_signature(call, net.cell))
    if key not in graph_call.cached:
        plan = _planned(net, call)
        _refuse_found(net, plan)
        refuse_writes(plan.loop, *UNCOMPILED)
        registered = RegisteredPlan(plan)
        cached = CachedCall(key, net.cell, call, plan, net.gradient, inputs=registered.handed)
        graph_call.cached[key] = registered, cached
    registered, cached = graph_call.cached[key]
    with CELL_LOCK, tensors_replaced(net.cell, instead):
        values = gather_call(cached.gather, registered.plan.loop, call)
    sweeps: Any = torch.ops.leporello
    if cached.trains:
        weights = passing_of(call, net.gradient).weights
        results = sweeps.forward_sweep(registered.name, call.length, call.batch, values, weights)
    else:
        results = sweeps.plain_sweep(registered.name, call.length, call.batch, values)
    return cached.in_trees(results)


def _exported(net: Network, call: Call, instead: dict[int, Tensor]) -> Results:
    """The same by an operator that carries the Loop."""
    plan = _planned(net, call, grad=False)
    _refuse_found(net, plan)
    loop = plan.loop
    refuse_writes(loop, *UNCOMPILED)
    if loop.traced_for_one_batch:
        raise EngineRefusal(
            "a step that depends on the number of rows is not exported.",
            cell=place_of(net.cell),
            because=loop.batch_interaction,
            tries="compute over features only",
        )
    inputs = tuple(port for port in loop.inputs if port.name not in loop.constants or port.kind != "invariant")
    gather = gather_function(loop.replace(inputs=inputs), *names_of(call))
    with CELL_LOCK, tensors_replaced(net.cell, instead):
        values = gather_call(gather, loop, call)
    results = run_as_operator(plan, net.engine, call.length, call.batch, values)
    outputs, final = tree_function(loop)(results)
    return outputs, without_unknown_types(final)


def _refuse_found(net: Network, plan: Plan) -> None:
    """Refuse a step that reads tensors which are no parameters or buffers: a graph could not see them change."""
    names = list(plan.loop.found)
    if names:
        raise ArgumentError(
            f"the step reads '{names[0]}', which the cell does not register: torch.compile would keep its first value.",
            cell=place_of(net.cell),
            tries="self.register_buffer, nn.Parameter or a submodule; or call the network outside of torch.compile",
        )


def _planned(net: Network, call: Call, *, grad: bool = True) -> Plan:
    """The plan of a call whose tensors hold no values.

    A plan depends on shapes and dtypes alone: a like call on small tensors of zeros is planned instead, in a fresh
    thread, outside of torch's tracing modes. The batch is looked at only for a step that decides by it.

    grad   whether gradients are wanted where they are not switched off
    """
    grad, cast, zeros = grad and torch.is_grad_enabled(), autocast_mode(call.device), stand_in(call)

    def planned(rows: int) -> Plan:
        autocast: Any = nullcontext() if cast is None else torch.autocast(call.device.type, cast)
        with (
            torch.set_grad_enabled(grad),
            autocast,
            CELL_LOCK,
            tensors_replaced(net.cell, _numbers_for_fakes(net.cell)),
        ):
            return net._plan_cache.plan(net.cell, zeros(rows), net.gradient, net.engine, free=False)[0]

    plan = in_fresh_thread(lambda: planned(STAND_IN_ROWS))
    if plan.loop.traced_for_one_batch:
        rows = int(call.batch)
        plan = in_fresh_thread(lambda: planned(rows))
    return plan


def _numbers_for_fakes(cell: nn.Module) -> dict[int, Tensor]:
    """By id, random tensors in the place of those parameters and buffers that hold no values.

    torch.export replaces all of them while it does not read the code itself (strict=False). Only the test that rows of
    the batch do not interact reads their values.
    """
    numbers = torch.Generator().manual_seed(0)
    fakes = [tensor for tensor in (*cell.parameters(), *cell.buffers()) if isinstance(tensor, FakeTensor)]
    return {id(fake): torch.rand(tuple(fake.shape), generator=numbers).to(fake.device, fake.dtype) for fake in fakes}


# ---- what is refused


def _refuse_method(net: Network) -> None:
    """Raise for a gradient method that is more than one backward sweep, with weights or without.

    A graph has no other operator. A limit is refused too where the engine `reference` is asked for. While gradients are
    switched off, every method passes.
    """
    method = net.gradient
    if not torch.is_grad_enabled():
        return
    if not method.runs_once or (method.limit is not None and net.engine == "reference"):
        raise ArgumentError(
            f"the gradient method {method!r} is not compiled.",
            expected="lp.Full(), lp.Truncated(steps) or lp.RandomTruncated()",
            tries="call the network outside of what is compiled; or under torch.no_grad(), if no gradient is wanted",
        )


def _refuse_packed(inputs: Tree) -> None:
    if isinstance(inputs, PackedSequence):
        raise ArgumentError(
            "a PackedSequence is not compiled.",
            expected="a padded tensor and lengths",
            tries="inputs, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed), outside of what is compiled",
        )


def _refuse_in_numbers(cell: nn.Module, arguments: dict[str, Any]) -> None:
    """Raise the error of a wrong call again, with integers for the sizes that are symbols in a graph.

    The check runs outside of the trace, on stand-ins of ones. It may pass, where only the values were wrong.
    """

    def tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.ones((), dtype=dtype, device=device).expand(shape)

    tensors: list[Tensor] = []
    skeleton = constant(flatten(arguments, tensors))
    forms = [(tuple(map(int, leaf.shape)), leaf.dtype, leaf.device) for leaf in tensors]
    in_fresh_thread(lambda: checked_call(cell, **unflatten(skeleton, iter([tensor(*form) for form in forms]))))
