"""A call while torch.compile makes a graph: no Python of ours is in it, only `leporello::recurrence`.

The compiler reads `in_graph` line by line, so it holds nothing but lists of tensors, names and plain values. The
operator does what an eager call does, on tensors that hold no numbers: it understands the arguments, finds a plan, and
leaves the sweeps of `engine/registered.py` in the graph, with what they read. Knows networks; knows no cell.

Not compiled: a PackedSequence; a gradient method with sweeps of its own. Gradients of gradients: torch has none of what
it compiled.
"""

from __future__ import annotations

import itertools
import os
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from leporello.call.arguments import Call, understood
from leporello.call.cell_key import OF_EVERY_MODULE
from leporello.call.fake_call import Standing
from leporello.call.graph_arguments import IN_GRAPH, put_together, spoken, taken_apart
from leporello.call.handles import network_of
from leporello.call.inputs import Words
from leporello.call.plan_cache import begun
from leporello.call.values import each, in_trees, passing_of, values_of
from leporello.engine.fresh_thread import in_fresh_thread
from leporello.engine.graph_operators import library
from leporello.engine.registered_plans import RegisteredPlan
from leporello.errors import ArgumentError, LeporelloError
from leporello.gradient.method import Method
from leporello.loop.cell_tensors import CELL_LOCK, tensors_replaced
from leporello.loop.state import Tree

SOME = "some"  # in the place of an attribute that is compared by what it is
_process = uuid.uuid4().hex
_numbers = itertools.count()
_forms: weakref.WeakValueDictionary[str, Form] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class Form:
    """A call in a graph, but for its tensors.

    handle     of the network
    skeleton   of the arguments
    answer     the skeleton of the results, once the call has been understood
    """

    handle: str
    skeleton: Any
    one_step: bool
    answer: Any = None
    plans: dict[Any, RegisteredPlan] = field(default_factory=dict)


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
    one_step: bool = False,
) -> tuple[Tree, Tree]:
    """Outputs and final state, as `Recurrent` gives them."""
    lengths = torch.tensor(lengths) if isinstance(lengths, (list, tuple)) else lengths
    if isinstance(forcing, float) and forcing != 0 and forcing != 1:
        forcing = torch.full((), forcing)  # so that another probability is no other graph
    tensors: list[Tensor] = []
    skeleton = taken_apart((inputs, state, lengths, resets, targets, forcing, draws), tensors)
    compare([net, net.gradient, *net.cell.modules()], attributes(net._handle, type(net.gradient).__name__))
    form = form_of_call(net._handle, skeleton, one_step)
    held = [*net.cell.parameters(), *net.cell.buffers()]
    results = torch.ops.leporello.recurrence(form, tensors, held, steps)
    outputs, final = put_together(answer(form), iter(results))
    return outputs, final


def refuse_own(gradient: Method | None) -> None:
    if gradient is not None:
        raise ArgumentError(
            "the argument 'gradient' of a call is not compiled.",
            came=repr(gradient),
            tries="lp.Recurrent(cell, gradient=...), or call the network outside of torch.compile",
        )


def understood_in_graph(inputs: Tree, lengths: Any, resets: Any, words: Words) -> Call:
    """What two networks over one sequence have in common; each looks at its own call when it is called."""
    leaves: list[Tensor] = []
    taken_apart(inputs, leaves)
    inputs, resets = words.taken(inputs), words.taken(resets)
    length, batch = leaves[0].shape[:2][:: -1 if words.batch_first else 1]
    if lengths is not None:
        lengths = torch.ops.leporello.lengths_in_range(torch.as_tensor(lengths), length).to(leaves[0].device)
    return Call(inputs, None, length, batch, leaves[0].device, lengths=lengths, resets=resets)


def compare(parts: Sequence[Any], known: Sequence[tuple[int, str, Any]]) -> None:
    """Look at the attributes a plan depends on: the compiler then makes another graph when one has changed."""
    for place, name, value in known:
        found = getattr(parts[place], name)
        if (found is None) if value == SOME else (taken_apart(found, []) != value):
            return


# ---- what runs while the compiler reads


@torch.compiler.assume_constant_result
def attributes(handle: str, method: str) -> tuple[tuple[int, str, Any], ...]:
    """The plain attributes of a network, its gradient method and the modules of its cell: whose, which, what."""
    net = _network(handle)
    own = {"engine": net.engine, "batch_first": net.batch_first}
    parts = [own, getattr(net.gradient, "__dict__", {}), *map(vars, net.cell.modules())]
    found: list[tuple[int, str, Any]] = []
    for place, part in enumerate(parts):
        for name, value in part.items():
            if name in OF_EVERY_MODULE:
                continue
            if _plain(value):
                found.append((place, name, taken_apart(value, [])))
            elif callable(value):
                found.append((place, name, SOME))
    return tuple(found)


def _plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_plain, value))
    if type(value) is dict:
        return all(map(_plain, value.values())) and all(map(_plain, value))
    return value is None or (isinstance(value, (bool, int, float, str)) and value == value)  # NaN equals nothing


@torch.compiler.assume_constant_result
def form_of_call(handle: str, skeleton: Any, one_step: bool) -> str:
    """A new name for a call in a graph: torch keeps graphs on disk by what they hold, and no two calls may be one."""
    name = f"{_process}.{os.getpid()}.{next(_numbers)}"
    form = Form(handle, spoken(skeleton), one_step)
    _forms[name] = _network(handle)._planner.forms[name] = form
    return name


@torch.compiler.assume_constant_result
def answer(form: str) -> Any:
    return _forms[form].answer


def _network(handle: str) -> Any:
    return network_of(handle)


# ---- the operator

library.define("recurrence(str form, Tensor[] tensors, Tensor[] held, SymInt? steps) -> Tensor[]")


def _recurrence(name: str, tensors: list[Tensor], held: list[Tensor], steps: Any = None) -> list[Tensor]:
    """The call, on whatever tensors the graph is made with: an operator that is made of others."""
    form = _forms[name]
    net = _network(form.handle)
    inputs, state, lengths, resets, targets, forcing, draws = put_together(form.skeleton, iter(tensors))
    _refuse_packed(inputs)
    arguments = {"resets": resets, "targets": targets, "forcing": forcing, "draws": draws}
    if not form.one_step:
        arguments |= {"lengths": lengths, "steps": steps, "batch_first": net.batch_first}
    instead = dict(zip(map(id, _held(net.cell)), held, strict=True))
    arguments |= {"inputs": inputs, "state": state, "one_step": form.one_step, "looks": IN_GRAPH}
    try:
        with CELL_LOCK, tensors_replaced(net.cell, instead):
            call = understood(net.cell, **arguments)
    except LeporelloError:
        _refuse_in_numbers(net.cell, arguments)
        raise
    outputs, final = _run(net, form, begun(call, net.gradient), instead)
    if form.one_step:
        outputs = each(lambda leaf: leaf.squeeze(0), outputs)
    elif net.batch_first:
        outputs = each(lambda leaf: leaf.transpose(0, 1), outputs)
    found: list[Tensor] = []
    form.answer = spoken(taken_apart((outputs, final), found))
    return found


def _run(net: Any, form: Form, call: Call, instead: dict[int, Tensor]) -> tuple[Tree, Tree]:
    """The sweeps of a call."""
    _refuse_method(net)
    standing = Standing.of(call)
    if standing.key not in form.plans:
        plan = standing.plan(net._planner, net.cell, net.gradient, net.engine)
        form.plans[standing.key] = RegisteredPlan(plan)
    known = form.plans[standing.key]
    loop = known.plan.loop
    handed = loop.replace(inputs=tuple(loop.inputs[place] for place in known.handed))
    with CELL_LOCK, tensors_replaced(net.cell, instead):
        values = values_of(handed, call)
    sweeps: Any = torch.ops.leporello
    if known.trains:
        weights = passing_of(call, net.gradient).weights
        results = sweeps.forward_sweep(known.name, call.length, call.batch, values, weights)
    else:
        results = sweeps.plain_sweep(known.name, call.length, call.batch, values)
    return in_trees(loop, results[: len(loop.outputs)])


def _held(cell: nn.Module) -> list[Tensor]:
    return [*cell.parameters(), *cell.buffers()]


def _refuse_method(net: Any) -> None:
    """One sweep back, with a weight or none, is what a graph has an operator for."""
    method = net.gradient
    own = type(method).run is not Method.run or method.groups(1) is not None
    if not torch.is_grad_enabled():
        return
    if own or (method.limit is not None and net.engine == "reference"):
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
    """What is wrong, once more, with sizes that are numbers where a graph has symbols: no graph comes of it."""

    def tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.ones((), dtype=dtype, device=device).expand(shape)

    tensors: list[Tensor] = []
    skeleton = spoken(taken_apart(arguments, tensors))
    forms = [(tuple(map(int, leaf.shape)), leaf.dtype, leaf.device) for leaf in tensors]
    in_fresh_thread(lambda: understood(cell, **put_together(skeleton, iter([tensor(*form) for form in forms]))))


library.impl("recurrence", _recurrence, "CompositeImplicitAutograd")
