"""From a call to a plan: trace once, rewrite for what the call asks, remember both.

Knows the order of the rewrites and what must be the same for a plan to serve again; knows nothing of arguments' forms.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.arguments import Call
from leporello.call.cell_key import autocast_mode, fingerprint, structure
from leporello.call.values import named_values, value_of
from leporello.engine.choice import Choice, choose
from leporello.engine.plan import Plan
from leporello.errors import EngineRefusal
from leporello.gradient.method import Method
from leporello.loop.cell import Cell
from leporello.loop.cell_tensors import under_cell_lock
from leporello.loop.loop import Loop
from leporello.loop.state import leaves_of, map_leaves
from leporello.loop.step import place_of
from leporello.loop.trace import trace
from leporello.rewrite.pipeline import Context, PassRecord, Pipeline

MOST = 64  # loops, and plans: an attribute that changes with every call must not fill the memory


@dataclass
class Planner:
    """The plans of one module. Copies and pickles of the module begin with an empty one."""

    loops: dict[Hashable, Loop] = field(default_factory=dict)
    plans: dict[Hashable, tuple[Plan, Choice]] = field(default_factory=dict)
    warm: dict[Hashable, Any] = field(default_factory=dict)  # calls of the plain form, as `Warm` keeps them
    recent: Any = None  # the last of them, as `Single` does one step of it
    last: Plan | None = None  # the plan of the last call
    forms: dict[str, Any] = field(default_factory=dict)  # calls in compiled graphs, as `Form` keeps them
    writers: dict[Hashable, Any] = field(default_factory=dict)  # sampled loops, as `Writer` runs them

    def __deepcopy__(self, memo: Any) -> Planner:
        return Planner()

    def __getstate__(self) -> dict[str, Any]:
        return {"loops": {}, "plans": {}, "warm": {}, "recent": None, "last": None, "forms": {}, "writers": {}}

    @under_cell_lock
    def plan(self, cell: nn.Module, call: Call, gradient: Method, engine: str) -> tuple[Plan, Choice]:
        """The plan for a call, made anew only when something it depends on has changed."""
        key = self._key(cell, call)
        needs = _needs(cell, call)
        batch = call.batch if self._any_batch(cell, call, key).traced_for_one_batch else None
        full = (key, batch, _asked(call), needs, gradient.plan_key, engine)
        if full not in self.plans:
            pipeline = Pipeline(call_context(cell, call))
            loop = pipeline.call(self.loop(cell, call, key))
            wanted = _wanted(loop, call, needs)
            keep(self.plans, full, prepared(loop, wanted, gradient, engine, cell, pipeline.records))
        return self.plans[full]

    @under_cell_lock
    def loop(self, cell: nn.Module, call: Call, key: Hashable | None = None) -> Loop:
        """The Loop of the cell as it is called, without the rewrites."""
        key = self._key(cell, call) if key is None else key
        loop = self._any_batch(cell, call, key)
        if not loop.traced_for_one_batch:
            return loop
        own = (key, call.batch)
        if own not in self.loops:
            keep(
                self.loops, own, _traced(cell, call, rows=call.batch).replace(batch_interaction=loop.batch_interaction)
            )
        return self.loops[own]

    def _any_batch(self, cell: nn.Module, call: Call, key: Hashable) -> Loop:
        """The Loop with the batch as a symbol, which serves every batch unless the step decides by it."""
        if key not in self.loops:
            keep(self.loops, key, _traced(cell, call))
        return self.loops[key]

    def _key(self, cell: nn.Module, call: Call) -> Hashable:
        leaves = [(leaf.shape[2:], leaf.dtype) for _, leaf in call.sequences]
        leaves += [(leaf.shape[1:], leaf.dtype) for _, leaf in call.states]
        return (
            cell,
            tuple(leaves),
            structure(call.inputs),
            structure(call.state),
            call.device,
            autocast_mode(call.device),
            fingerprint(cell),
        )


def keep(table: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Remember; the oldest goes when there are too many."""
    table[key] = value
    if len(table) > MOST:
        del table[next(iter(table))]


def _traced(cell: nn.Module, call: Call, rows: int | None = None) -> Loop:
    first = map_leaves(lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf, call.inputs)
    with torch.enable_grad():
        return trace(cell, first, call.state, rows=rows)


def prepared(
    loop: Loop,
    wanted: tuple[bool, ...],
    gradient: Method,
    asked: str,
    cell: nn.Module,
    before: Sequence[PassRecord] = (),
) -> tuple[Plan, Choice]:
    """A plan, once its engine has shown that it can run the Loop both ways; where it cannot, auto tries the next.

    before   the passes that led to the Loop
    """
    refused: list[tuple[str, str]] = []
    while True:
        choice = choose(asked, loop, refused)
        plan = Plan(loop, wanted, gradient.passes(), choice.target, before=tuple(before))
        if choice.target is None:
            return plan, choice
        try:
            gradient.prepare(plan)
        except EngineRefusal as refusal:
            if asked != "auto":
                refusal.place(cell=place_of(cell))
                raise
            refused.append((choice.engine, refusal.what))
        else:
            return plan, choice


def _asked(call: Call) -> Hashable:
    """Which rewrites the call needs."""
    forced = None if call.targets is None else "always" if call.coin is None else "coin"
    restarts = None if call.resets is None else "zeros" if call.initial is None else "given"
    return (forced, restarts, call.lengths is not None)


def call_context(cell: nn.Module, call: Call) -> Context:
    """What the call asks of the pipeline: forcing, resets, lengths."""
    forced = None
    if call.targets is not None:
        assert isinstance(cell, Cell)
        forced = str(cell.feedback_leaf())
    restarts = None
    if call.resets is not None:
        restarts = () if call.initial is None else tuple(name for name, _ in call.states)
    return Context(forced=forced, always=call.coin is None, restarts=restarts, lengths=call.lengths is not None)


def rewritten(loop: Loop, cell: nn.Module, call: Call) -> Loop:
    """The Loop with what the call asks of it."""
    return Pipeline(call_context(cell, call)).call(loop)


def _needs(cell: nn.Module, call: Call) -> Hashable:
    """Which leaves require a gradient now."""
    if not torch.is_grad_enabled():
        return None
    return (
        tuple(leaf.requires_grad for _, leaf in call.sequences),
        tuple(leaf.requires_grad for _, leaf in call.states),
        tuple(parameter.requires_grad for parameter in cell.parameters()),
        call.targets is not None and call.targets.requires_grad,
        call.initial is not None and any(leaf.requires_grad for leaf in leaves_of(call.initial)),
    )


def _wanted(loop: Loop, call: Call, needs: Hashable) -> tuple[bool, ...]:
    if needs is None:
        return (False,) * len(loop.inputs)
    given = named_values(loop, call)
    return tuple(port.kind != "draw" and value_of(loop, port, given).requires_grad for port in loop.inputs)


def begun(call: Call, gradient: Method) -> Call:
    """The call as a gradient method begins it: on a detached state, where nothing ever enters the one handed in."""
    if gradient.crossing(1)[0]:
        return call
    states = [(name, leaf.detach()) for name, leaf in call.states]
    detached = map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, call.state)
    return replace(call, state=detached, states=states)
