"""`Recurrent`: a cell over a sequence. The module most people need.

Knows the order of work: understand the call, plan, run, put the results back into the user's trees.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.arguments import Call, repacked, understood
from leporello.call.cached_call import Warm, form_of
from leporello.call.explain import explanation
from leporello.call.handles import handle_of
from leporello.call.plan_cache import Planner, begun, keep, rewritten
from leporello.call.values import each, in_trees, passing_of, values_of
from leporello.engine.choice import refuse_unknown
from leporello.engine.state_gradient import Passing
from leporello.errors import ArgumentError, MissingState
from leporello.gradient.method import Method
from leporello.gradient.through_time import Full
from leporello.loop.cell import Cell
from leporello.loop.state import Tree
from leporello.loop.step import as_module, place_of
from leporello.view.folded_loop import FoldedLoop


class Recurrent(nn.Module):
    """A cell, run over a sequence by an engine.

        state = cell.initial_state(batch) if state is None
        for t in range(length):
            outputs[t], state = cell(inputs[t], state)
        return outputs, state

    cell         an lp.Cell, or any module or function (x, state) -> (output, next state)
    gradient     how gradients are computed: lp.Full(), lp.Truncated(35) within windows, lp.RTRL(), lp.UORO()
    engine       "auto", "cpu", "stepwise" or "reference"; explain() says what auto chose
    batch_first  sequences are (batch, length, ...) instead of (length, batch, ...)

    >>> net = Recurrent(torch.nn.RNNCell(3, 4).forward)   # doctest: +SKIP
    """

    def __init__(
        self, cell: Any, *, gradient: Method | None = None, engine: str = "auto", batch_first: bool = False
    ) -> None:
        super().__init__()
        refuse_unknown(engine)
        gradient = Full() if gradient is None else gradient
        refuse_no_method(gradient)
        self.cell = as_module(cell)
        self.gradient = gradient
        self.engine = engine
        self.batch_first = batch_first
        self._planner = Planner()
        self._handle = handle_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handle = handle_of(self)  # a copy is another network

    def forward(
        self,
        inputs: Tree = None,
        state: Tree = None,
        *,
        lengths: Any = None,
        resets: Tensor | None = None,
        targets: Tensor | None = None,
        forcing: Any = None,
        steps: int | None = None,
        draws: Sequence[Tensor] | None = None,
        gradient: Method | None = None,
    ) -> tuple[Tree, Tree]:
        """Outputs and final state.

        inputs    (length, batch, ...), a tree of such tensors, a PackedSequence, or None for a system without input
        state     the state before the first step; by default the cell's initial state
        lengths   (batch,) integers: rows end there; outputs past it are zero, the final state is the one at the end
        resets    (length, batch) booleans: where true, the state is the initial one before that step
        targets   for cells with feedback: the true values, fed back instead of the outputs; or class indices
        forcing   a probability or a (length, batch) mask of where targets are fed back; 1 by default
        steps     the length, for a call without inputs
        draws     random numbers to use instead of fresh ones, as `draw` gives them
        gradient  how the gradients of this call are computed; by default as the network says
        """
        if gradient is not None:
            refuse_no_method(gradient)
        if torch.compiler.is_dynamo_compiling():
            from leporello.call.compiled import in_graph, refuse_own  # needs a part of torch that only compilers do

            refuse_own(gradient)
            return in_graph(self, inputs, state, lengths, resets, targets, forcing, draws, steps)
        common = targets is None and forcing is None and steps is None and draws is None
        form = form_of(inputs, state, lengths, resets) if common else None
        found = None
        if form and self.batch_first:
            turned = resets.transpose(0, 1) if isinstance(resets, Tensor) and resets.dim() == 2 else resets
            found = self._warm(form, inputs.transpose(0, 1), state, lengths, turned, gradient)
        elif form:
            found = self._warm(form, inputs, state, lengths, resets, gradient)
        if found is None:
            call = self._understood(
                inputs,
                state,
                lengths=lengths,
                resets=resets,
                targets=targets,
                forcing=forcing,
                steps=steps,
                draws=draws,
            )
            found = self._run(call, form=form, given=state, gradient=gradient)
            if call.packed is not None:
                return repacked(found[0], call.packed), found[1]
        if not self.batch_first:
            return found
        return each(lambda leaf: leaf.transpose(0, 1), found[0]), found[1]

    def step(
        self,
        x: Tree = None,
        state: Tree = None,
        *,
        reset: Tensor | None = None,
        target: Tensor | None = None,
        forcing: Any = None,
        draws: Sequence[Tensor] | None = None,
    ) -> tuple[Tree, Tree]:
        """One step: output and next state. Arguments as in a call, without the length axis."""
        if torch.compiler.is_dynamo_compiling():
            from leporello.call.compiled import in_graph

            return in_graph(self, x, state, None, reset, target, forcing, draws, one_step=True)
        recent = self._planner.recent
        plain = reset is None and target is None and forcing is None and draws is None and isinstance(x, Tensor)
        if plain and recent is not None and recent.engine is self.engine and recent.gradient is self.gradient:
            found = recent.run(x, state)
            if found is not None:
                return found
        form = form_of(x, state, one_step=True) if plain else None
        found = self._warm(form, x.unsqueeze(0), state) if form else None
        if found is None:
            call = understood(
                self.cell,
                x,
                state,
                resets=reset,
                targets=target,
                forcing=forcing,
                draws=draws,
                one_step=True,
            )
            found = self._run(call, form=form, given=state)
        return each(lambda leaf: leaf.squeeze(0), found[0]), found[1]

    def initial_state(self, batch: int, **options: Any) -> Tree:
        """The state before the first step, for so many rows."""
        make = getattr(self.cell, "initial_state", None)
        if make is None:
            raise MissingState(
                "this cell declares no initial state.",
                cell=place_of(self.cell),
                tries="derive it from lp.Cell, or pass state= in the call",
            )
        return make(batch, **options)

    def draw(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> list[Tensor]:
        """The random numbers a call with these arguments would use: pass them as `draws` to repeat it."""
        call = self._understood(inputs, state, **arguments)
        loop = rewritten(self._planner.loop(self.cell, call), self.cell, call)
        return [v for port, v in zip(loop.inputs, values_of(loop, call), strict=True) if port.kind == "draw"]

    def explain(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> str:
        """Which engine runs this call and why, what runs at once and what step by step, what is saved."""
        call = begun(self._understood(inputs, state, **arguments), self.gradient)
        plan, choice = self._planner.plan(self.cell, call, self.gradient, self.engine)
        return explanation(plan, choice, self.gradient, call.length, call.batch)

    def fold(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> FoldedLoop:
        """The Loop of a call with these arguments."""
        call = self._understood(inputs, state, **arguments)
        return FoldedLoop.of(rewritten(self._planner.loop(self.cell, call), self.cell, call))

    @property
    def clipped(self) -> float | None:
        """The share of (step, row) pairs at which `clip_state` acted in the last gradient that went back; else None."""
        plan = self._planner.last
        return None if plan is None or plan.clipped is None else plan.clipped.share

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf() if isinstance(self.cell, Cell) else None

    def _understood(self, inputs: Tree, state: Tree, **arguments: Any) -> Call:
        return understood(self.cell, inputs, state, batch_first=self.batch_first, **arguments)

    def _warm(
        self,
        form: Hashable,
        inputs: Tensor,
        state: Tree,
        lengths: Any = None,
        resets: Any = None,
        gradient: Method | None = None,
    ) -> tuple[Tree, Tree] | None:
        """The results of a call of a form that has been seen, if nothing has changed since."""
        gradient = self.gradient if gradient is None else gradient
        warm = self._planner.warm.get((form, self.engine, gradient))
        if warm is None:
            return None
        self._planner.recent, self._planner.last = warm.single, warm.plan
        return warm.run(inputs, state, lengths, resets)

    def _run(
        self,
        call: Call,
        passing: Passing | None = None,
        form: Hashable | None = None,
        given: Tree = None,
        gradient: Method | None = None,
    ) -> tuple[Tree, Tree]:
        """Plan and run; a call of a common form is remembered by it.

        given      the state as it was handed in
        gradient   the method of this call, if it has one of its own
        """
        gradient = self.gradient if gradient is None else gradient
        call = begun(call, gradient)
        plan, choice = self._planner.plan(self.cell, call, gradient, self.engine)
        self._planner.last = plan
        values = values_of(plan.loop, call)
        passing = passing_of(call, gradient) if passing is None else passing  # after the draws, as in a warm call
        if form is not None and not plan.loop.traced_for_one_batch:
            warm = Warm(self.cell, call, plan, choice, gradient, self.engine, given=given)
            keep(self._planner.warm, (form, self.engine, gradient), warm)
        results = gradient.run(plan, values, call.length, call.batch, passing)
        return in_trees(plan.loop, results)

    def extra_repr(self) -> str:
        return f"engine={self.engine!r}, gradient={self.gradient}" + (", batch_first=True" if self.batch_first else "")


def refuse_no_method(gradient: Any) -> None:
    if not isinstance(gradient, Method):
        raise ArgumentError(
            "the argument 'gradient' is no gradient method.",
            came=repr(gradient),
            expected="an object such as lp.Full() or lp.Truncated(35)",
            tries="leave out gradient=: exact gradients are the default",
        )
