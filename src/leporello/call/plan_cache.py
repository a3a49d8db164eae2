"""`PlanCache`: the loops, plans and cached calls of one network. A cell is traced, and a call planned, once.

`Network` is what a call knows of the network it belongs to. Graphs of torch.compile hold texts and tensors but no
Python objects, so they refer to a network by a handle; a copy of a network has another handle.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _disable_current_modes

from leporello.call.arguments import Call
from leporello.call.cached_call import CachedCall
from leporello.call.cell_key import cell_key
from leporello.call.signature import fixed_axes, lengths_of, ones_of, plan_signature, too_short, trace_signature
from leporello.call.values import extra_key, extra_values
from leporello.engine.choice import Choice, build_ahead, choose, refuse_writes
from leporello.engine.plan import Plan, pipeline_of
from leporello.errors import EngineRefusal
from leporello.gradient.method import Method
from leporello.loop.cell import Cell
from leporello.loop.context import FreeAxes, axes_of, without_lengths
from leporello.loop.length_one import holds_at_one
from leporello.loop.loop import Loop
from leporello.loop.phases import no_garbage_collection, recorded_phases, timed_phase
from leporello.loop.port import Port
from leporello.loop.sizes import LengthsFixed
from leporello.loop.state import map_leaves
from leporello.loop.step import place_of
from leporello.loop.tracing.cell_tensors import under_cell_lock
from leporello.loop.tracing.trace import trace
from leporello.rewrite.pipeline import Context, PassRecord, Pipeline

MAX_ENTRIES = 64  # of each table: an attribute that changes with every call must not fill the memory


@dataclass
class PlanCache:
    """What is kept between calls of one network. Copies and pickles of the network begin with an empty one.

    loops         traces, by what they depend on
    plans         plans, each with the choice of its engine
    calls         `CachedCall`s, by the signature of a call
    recent        the last of them that ran
    graph_calls   calls in graphs of torch.compile, by name
    free          which axes of a context have free lengths, by what a trace depends on beside their sizes, and by which
                  of them are 1, where a trace of its own serves these
    transformed   calls under transforms of torch.func, by all that they depend on
    observed      the cell, and the network that is called while it has forward hooks
    """

    loops: dict[Hashable, Loop] = field(default_factory=dict)
    plans: dict[Hashable, tuple[Plan, Choice]] = field(default_factory=dict)
    calls: dict[Hashable, CachedCall] = field(default_factory=dict)
    recent: CachedCall | None = None
    graph_calls: dict[str, Any] = field(default_factory=dict)
    free: dict[Hashable, list[FreeAxes]] = field(default_factory=dict)
    transformed: dict[Hashable, Any] = field(default_factory=dict)
    observed: Any = None

    def __reduce__(self) -> tuple[type[PlanCache], tuple[()]]:
        return PlanCache, ()

    @under_cell_lock
    def plan(
        self, cell: nn.Module, call: Call, gradient: Method, engine: str, *, free: bool = True
    ) -> tuple[Plan, Choice]:
        """The plan for a call, made anew only when something it depends on has changed.

        free   whether lengths of the context that may differ between calls need no other plan
        """
        free = free and bool(call.contexts) and gradient.backwards
        if not free:
            return self._plan(cell, call, gradient, engine, free=False)
        form = self._form_key(cell, call)
        try:
            plan, choice = self._plan(cell, call, gradient, engine, free=True)
        except (LengthsFixed, EngineRefusal):
            fixed = self._plan(cell, call, gradient, engine, free=False)  # raises the refusal that has another reason
            keep(self.free, form, fixed_axes(call))
            return fixed
        if plan.loop.free_lengths and choice.refused:
            fixed = self._plan(cell, call, gradient, engine, free=False)
            if len(fixed[1].refused) < len(choice.refused):  # a faster engine needs the lengths
                keep(self.free, form, fixed_axes(call))
                return fixed
        ones = ones_of(call, axes_of(plan.loop, call.contexts))
        if ones and plan.target is not None and not all(holds_at_one(loop, ones) for loop in plan.sweep_loops()):
            return self._plan(cell, call, gradient, engine, free=False)
        return plan, choice

    def _plan(self, cell: nn.Module, call: Call, gradient: Method, engine: str, *, free: bool) -> tuple[Plan, Choice]:
        with recorded_phases("the rest") as seconds, no_garbage_collection(), _without_modes():
            plan, choice, is_new = self._planned(cell, call, gradient, engine, free=free)
        if is_new:
            plan.seconds = seconds
        return plan, choice

    def _planned(
        self, cell: nn.Module, call: Call, gradient: Method, engine: str, *, free: bool
    ) -> tuple[Plan, Choice, bool]:
        """The plan for a call with its choice, and whether it is made here."""
        build_ahead(engine, call.device, _float_dtype(call))
        key = self._trace_key(cell, call, free=free)
        traced = self._any_batch(cell, call, key)
        batch = call.batch if _is_for_one_batch(traced, call) else None
        found = tuple(read().requires_grad for read in traced.found.values())
        plan_key = (key, traced, batch, found, plan_signature(call, cell), gradient.plan_key, engine)
        is_new = plan_key not in self.plans
        if is_new:
            pipeline = Pipeline(call_context(cell, call))
            loop = pipeline.call(self.loop(cell, call, key))
            wanted = _wanted(loop, call)
            keep(self.plans, plan_key, prepared(loop, wanted, gradient, engine, cell, pipeline.records))
        return (*self.plans[plan_key], is_new)

    @under_cell_lock
    def cached_call(
        self, cell: nn.Module, call: Call, gradient: Method, engine: str, key: Hashable | None
    ) -> CachedCall:
        """The `CachedCall` of a checked call, made anew if the cell has changed.

        key   the signature of the call; a call without one is cached by its plan
        """
        plan, _ = self.plan(cell, call, gradient, engine)
        if key is None or plan.loop.traced_for_one_batch:
            key = (plan, gradient)
        cached = self.calls.get(key)
        if cached is None or cached.plan is not plan or not cached.unchanged():
            cached = CachedCall(key, cell, call, plan, gradient)
            keep(self.calls, key, cached)
        self.recent = cached
        return cached

    @under_cell_lock
    def loop(self, cell: nn.Module, call: Call, key: Hashable | None = None, *, free: bool = False) -> Loop:
        """The trace of the cell for a call's inputs and state, before any rewrite.

        It serves every batch, or this one alone where the step decides by the batch.

        key    what the trace depends on, if it is known
        free   whether it serves every length of those axes of the context that may differ between calls
        """
        key = self._trace_key(cell, call, free=free) if key is None else key
        loop = self._any_batch(cell, call, key)
        if not _is_for_one_batch(loop, call):
            return loop
        batch_key = (key, call.batch)
        if batch_key not in self.loops or not self.loops[batch_key].found_as_traced():
            keep(
                self.loops,
                batch_key,
                _traced(cell, call, rows=call.batch).replace(batch_interaction=loop.batch_interaction),
            )
        return self.loops[batch_key]

    def _any_batch(self, cell: nn.Module, call: Call, key: Hashable) -> Loop:
        """The Loop with the batch as a symbol, which serves every batch unless the step decides by it."""
        if key not in self.loops or not self.loops[key].found_as_traced():
            keep(self.loops, key, _traced(cell, call))
        return self.loops[key]

    def _trace_key(self, cell: nn.Module, call: Call, *, free: bool) -> Hashable:
        """What the trace of a call depends on; with free lengths, it is made here if it is the first of its form.

        Lengths of 1 have a trace of their own where that for other lengths does not serve them.
        """
        if not free or not call.contexts or too_short(call):
            return (cell, trace_signature(call, fixed_axes(call)), cell_key(cell))
        form = self._form_key(cell, call)
        key = self._free_key(cell, call, form, ones=True)
        axes = self.free[form]
        ones = ones_of(call, axes)
        if not ones or holds_at_one(self.loops[key], ones):
            return key
        own = (form, ones)
        if own not in self.free:
            keep(self.free, own, without_lengths(axes, ones))
        return self._free_key(cell, call, own, ones=False)

    def _free_key(self, cell: nn.Module, call: Call, form: Hashable, *, ones: bool) -> Hashable:
        """The key of a trace with free lengths, which is made here unless there is one for calls of this form.

        ones   whether an axis of length 1 may have one
        """
        axes = self.free.get(form)
        if axes is not None and lengths_of(call, axes) is not None:  # else axes that were alike differ
            key = (cell, trace_signature(call, axes), cell_key(cell))
            if axes == fixed_axes(call) or (key in self.loops and self.loops[key].found_as_traced()):
                return key
        loop = _traced(cell, call, free=True, ones=ones)
        axes = fixed_axes(call) if loop.traced_for_one_batch else axes_of(loop, call.contexts)
        keep(self.free, form, axes)
        key = (cell, trace_signature(call, axes), cell_key(cell))
        if not loop.traced_for_one_batch:
            keep(self.loops, key, loop)
        return key

    def _form_key(self, cell: nn.Module, call: Call) -> Hashable:
        return (cell, trace_signature(call), cell_key(cell))


def _is_for_one_batch(loop: Loop, call: Call) -> bool:
    """Whether a call gets a trace of its own number of rows.

    One row does if the step writes to a buffer: batch norm refuses it, where its statistics would become NaN.
    """
    alone = call.batch == 1 and loop.batch_interaction is not None
    return loop.traced_for_one_batch or (alone and bool(loop.written))


def _without_modes() -> AbstractContextManager[Any]:
    """Outside of the modes that a call runs under, such as torch's counter of FLOPs: they would see the trace."""
    return _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext()


def keep(table: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Add an entry to a table; the oldest goes when there are too many."""
    table[key] = value
    if len(table) > MAX_ENTRIES:
        del table[next(iter(table))]


def _traced(cell: nn.Module, call: Call, rows: int | None = None, *, free: bool = False, ones: bool = True) -> Loop:
    first = map_leaves(lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf, call.inputs)
    with torch.enable_grad(), timed_phase("tracing the step"):
        return trace(cell, first, call.state, call.context, rows=rows, free=free, ones=ones)


def rewritten(loop: Loop, cell: nn.Module, call: Call) -> Loop:
    """The Loop with the rewrites that the call needs."""
    return Pipeline(call_context(cell, call)).call(loop)


def call_context(cell: nn.Module, call: Call) -> Context:
    """What the call contributes to the pipeline: whether and how it has forcing, resets and lengths."""
    forced = None
    if call.targets is not None:
        assert isinstance(cell, Cell)
        forced = str(cell.feedback_leaf())
    restarts = None
    if call.resets is not None:
        restarts = () if call.initial is None else tuple(name for name, _ in call.states)
    return Context(forced=forced, always=call.coin is None, restarts=restarts, lengths=call.lengths is not None)


def _float_dtype(call: Call) -> torch.dtype:
    """The floating dtype that most of a call is probably computed in."""
    dtypes = (leaf.dtype for _, leaf in (*call.states, *call.sequences) if leaf.is_floating_point())
    return next(dtypes, torch.get_default_dtype())


def prepared(
    loop: Loop,
    wanted: tuple[bool, ...],
    gradient: Method,
    engine: str,
    cell: nn.Module | None,
    before: Sequence[PassRecord] = (),
) -> tuple[Plan, Choice]:
    """A plan whose engine has shown that it can run the Loop both ways; where it cannot, "auto" tries the next one.

    wanted   for each input of the Loop whether it has a gradient
    cell     whose Loop it is, for errors; None where it is not known
    before   the passes that led to the Loop
    """
    refused: list[tuple[str, str]] = []
    if any(wanted) and not gradient.runs_once:
        refuse_writes(
            loop,
            f"the gradient method {gradient!r} runs steps more than once",
            "lp.Full() or lp.Truncated(steps); eval()",
        )
    while True:
        choice = choose(engine, loop, refused)
        pipeline = pipeline_of(choice.target, before=before)
        try:
            own = pipeline.plan(loop)
            added = (False,) * (len(own.inputs) - len(loop.inputs))  # constants that the target's form has
            plan = Plan(own, wanted + added, gradient.passes(), choice.target, before=tuple(pipeline.records))
            if choice.target is not None:
                gradient.prepare(plan)
        except EngineRefusal as refusal:
            if engine != "auto":
                refusal.place(
                    cell=None if cell is None else place_of(cell),
                    tries='engine="auto", which takes the fastest engine that can run it',
                )
                raise
            refused.append((choice.engine, refusal.what))
        else:
            return plan, choice


def _wanted(loop: Loop, call: Call) -> tuple[bool, ...]:
    """For each input of the loop whether it has a gradient in this call."""
    if not torch.is_grad_enabled():
        return (False,) * len(loop.inputs)
    named: dict[str, Any] = {"sequence": dict(call.sequences), "state": dict(call.states), "invariant": loop.parameters}
    extra = extra_values(call, loop)

    def requires_grad(port: Port) -> bool:
        value = named[port.kind][port.name] if port.has_default_role else extra[extra_key(port)]
        return value.requires_grad

    return tuple(not port.is_drawn and requires_grad(port) for port in loop.inputs)


def detached_for(call: Call, gradient: Method) -> Call:
    """The call on a detached state where the gradient method never lets a gradient enter the initial state."""
    if gradient.crossing(1)[0]:
        return call
    states = [(name, leaf.detach()) for name, leaf in call.states]
    state = map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, call.state)
    return replace(call, state=state, states=states)


# ---- networks by handle


class Network(Protocol):
    """A cell with the options of its calls."""

    cell: nn.Module
    gradient: Method
    batch_first: bool
    _plan_cache: PlanCache
    _handle: str

    @property
    def engine(self) -> str: ...


_numbers = itertools.count()
_networks: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def handle_of(network: Network) -> str:
    """A new handle for a network, under which it is found as long as it lives."""
    handle = str(next(_numbers))
    _networks[handle] = network
    return handle


def network_by_handle(handle: str) -> Network:
    return _networks[handle]
