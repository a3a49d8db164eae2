"""`CachedCall`: a plan with all that a call of its signature needs beside its arguments.

The first call of a signature is checked, traced, planned, and makes a `CachedCall`. A later one gathers the values of
the loop's inputs, runs the plan, and puts the results into the user's trees. Learners, generation and compiled graphs
use the same three parts: `gather`, `plan`, `in_trees`.

A cached call is used only while its cell is what it was, and returns None otherwise: then the call is checked and
planned again, which raises for wrong arguments.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.call.arguments import Call, checked_forcing
from leporello.call.cell_key import unchanged_since_now
from leporello.call.checks import checked_context, checked_lengths, checked_mask, fitting_draws
from leporello.call.initial_state import fresh_state, reset_state
from leporello.call.inputs import ArgumentAxes, is_floating, map_tensors, state_options
from leporello.call.signature import autocast_mode
from leporello.call.values import (
    Extra,
    Results,
    counted,
    extra_values,
    gather_call,
    gather_function,
    names_of,
    passing_for,
    passing_of,
    reads_time,
    times_of,
    tree_function,
)
from leporello.engine import autograd
from leporello.engine.plan import Plan
from leporello.engine.state_gradient import ALL, Passing
from leporello.errors import LeporelloError
from leporello.gradient.method import Method
from leporello.gradient.through_time import Full
from leporello.loop.batch_axis import BatchAxis, batch_in_front
from leporello.loop.cell import Cell
from leporello.loop.port import Role
from leporello.loop.state import Tree, leaves_of
from leporello.loop.tracing.cell_tensors import CELL_LOCK, replacements

PAST, TARGET = (Role.PAST, None), (Role.TARGET, None)


class CachedCall:
    """A call of one signature, ready to run.

    key         the signature of the call, or another cache key for one without
    gather      (sequences, states, extra, draws, length, batch) -> values of the loop's inputs
    in_trees    values of the loop's outputs -> outputs and final state in the user's trees
    unchanged   whether the cell is still what it was
    one_step    runs a single step by one function, where a kernel is all of it and nothing is trained; else None
    """

    def __init__(
        self,
        key: Hashable,
        cell: nn.Module,
        call: Call,
        plan: Plan,
        gradient: Method,
        inputs: Sequence[int] | None = None,
    ) -> None:
        """`inputs` are the indices of the loop's inputs that are gathered; all by default."""
        self.key, self.cell, self.plan, self.gradient, self.device = key, cell, plan, gradient, call.device
        self.unchanged, self.modules = unchanged_since_now(cell, plan.loop.found), frozenset(map(id, cell.modules()))
        self.names, self.state_names = names_of(call)
        ports = plan.loop.inputs if inputs is None else tuple(plan.loop.inputs[index] for index in inputs)
        self.gather = gather_function(plan.loop.replace(inputs=ports), self.names, self.state_names)
        self.in_trees = tree_function(plan.loop)
        self.reads_time = reads_time(plan.loop)
        self.drawn = [port for port in ports if port.is_drawn]
        # the state
        self.state_options = state_options(cell, call.sequences, call.state)
        self.flat = isinstance(call.state, tuple) and all(isinstance(leaf, Tensor) for leaf in call.state)
        self.zeros = _zeros(cell, call)
        self.turns = isinstance(cell, BatchAxis)
        self.detaches = not gradient.crossing(1)[0]
        target = next((port for port in plan.loop.inputs if port.role is Role.TARGET), None)
        self.target_form = (None, ()) if target is None else (target.dtype, target.shape)
        self.same_form: bool | None = None  # whether the targets of these calls have it; None before the first one
        # how the plan is run
        by_reference = plan.target is None
        self.trains, self.writes = any(plan.wanted), bool(plan.loop.written)
        self.plain = autograd.call if by_reference else autograd.plain
        self.trained = gradient.run if by_reference or type(gradient).run is not Method.run else autograd.trained
        self.exact = type(gradient) is Full and gradient.clip_state is None
        self.weight_dtype = next((leaf.real.dtype for _, leaf in call.states if is_floating(leaf)), None)
        kernel_alone = not (by_reference or self.trains or torch.is_grad_enabled() or autocast_mode(call.device))
        self.one_step, self.places = (plan.one_step, plan.plain_places) if kernel_alone else (None, ())
        # kept from the last call: zero states with their batch, numbers of the steps, weights with length and batch;
        # each is read once and replaced as a whole, because other threads may call too
        self._begun: tuple[int, list[Tensor]] = (0, [])
        self._times: Tensor | None = None
        self._weights: tuple[int, int, Passing] = (0, 0, ALL)

    def run(
        self,
        inputs: Tensor,
        state: Tree,
        lengths: Any = None,
        resets: Any = None,
        context: Tree = None,
        targets: Any = None,
        forcing: Any = None,
        draws: Any = None,
        one_step: bool = False,
    ) -> Results | None:
        """Outputs and final state of a call with this signature; None if it must be checked and planned again.

        inputs     (length, batch, ...)
        one_step   whether the draws come without the length axis
        """
        length, batch = inputs.shape[:2]
        if not length or not batch or (batch == 1 and self.writes):
            return None
        forced = None if targets is None else (targets, forcing)
        gathered = self.values((inputs,), state, length, batch, lengths, resets, context, forced, draws, one_step)
        if gathered is None:
            return None
        values, extra = gathered
        batch = counted(batch, self.plan.loop, extra)
        passing = ALL if self.exact else self._passing(length, batch, None if extra is None else extra.get(PAST))
        if self.trains:
            return self.in_trees(self.trained(self.plan, values, length, batch, passing))
        return self.in_trees(self.plain(self.plan, values, length, batch))

    def step(self, x: Tensor, state: Tree, context: Tree = None, draws: Any = None) -> Results | None:
        """Output and next state of one step with this signature; None if it must be checked and planned again.

        x   (batch, ...)
        """
        if self.one_step is None:
            results = self.run(x.unsqueeze(0), state, context=context, draws=draws, one_step=True)
            return None if results is None else (map_tensors(_without_length, results[0]), results[1])
        batch = x.shape[0]
        gathered = self.values((x,), state, 1, batch, context=context, draws=draws, one_step=True) if batch else None
        if gathered is None:
            return None
        values, extra = gathered
        batch = counted(batch, self.plan.loop, extra)
        return self.in_trees(self.one_step(batch, *[values[place] for place in self.places]))

    def run_checked(self, call: Call, passing: Passing | None = None) -> Results:
        """Outputs and final state of any checked call that has this plan.

        passing   what each step passes back; by default as the gradient method has it
        """
        with CELL_LOCK:
            values = gather_call(self.gather, self.plan.loop, call)
        passing = passing_of(call, self.gradient) if passing is None else passing  # after the draws, as in `run`
        batch = counted(call.batch, self.plan.loop, extra_values(call, self.plan.loop))
        return self.in_trees(self.gradient.run(self.plan, values, call.length, batch, passing))

    def values(
        self,
        sequences: Sequence[Tensor],
        state: Tree,
        length: int,
        batch: int,
        lengths: Any = None,
        resets: Any = None,
        context: Tree = None,
        forced: tuple[Any, Any] | None = None,
        draws: Any = None,
        one_step: bool = False,
    ) -> tuple[list[Tensor], Extra | None] | None:
        """The values of the loop's inputs, and what the rewrites read (None where they read nothing).

        None if the cell has changed, or if lengths, resets, context, targets, draws or batches are wrong.

        forced     targets and forcing of a call that has them
        one_step   whether the draws come without the length axis

        No lock is taken. If another thread replaces the tensors of some cell meanwhile, everything is read once more;
        if it replaces those of this cell, the result is None, and the caller takes the lock and waits.
        """
        while True:
            replaced = replacements.modules
            if replaced and not self.modules.isdisjoint(replaced):
                return None
            try:
                if not self.unchanged():
                    return None
                states = self._states_before(state, batch)
                if states is None:
                    return None
                extra, numbers = None, None
                if not (lengths is resets is context is forced is None) or self.reads_time:
                    extra = self._extra(sequences[0], length, batch, states, lengths, resets, context, forced)
                    if extra is None:
                        return None
                    batch = counted(batch, self.plan.loop, extra)
                if draws is not None:
                    numbers = fitting_draws(draws, self.drawn, length, batch, one_step=one_step)
                    if numbers is None:
                        return None
                values = self.gather(sequences, states, extra, numbers, length, batch)
            except Exception:
                if replacements.modules is replaced:
                    raise
                continue
            if replacements.modules is replaced:
                return values, extra

    def _states_before(self, state: Tree, batch: int) -> Sequence[Tensor] | None:
        """The state's leaves before the first step; None if one has another batch."""
        if state is None:
            if self.zeros is not None:
                rows, zeros = self._begun
                if batch != rows:
                    zeros = [torch.zeros(batch, *shape, dtype=dtype, device=self.device) for shape, dtype in self.zeros]
                    self._begun = (batch, zeros)
                return zeros
            leaves = leaves_of(fresh_state(self.cell, batch, self.state_options))
        else:
            if self.turns:
                state = batch_in_front(self.cell, state)
            leaves = [state] if isinstance(state, Tensor) else state if self.flat else leaves_of(state)
            for leaf in leaves:
                if not leaf.dim() or leaf.shape[0] != batch:
                    return None
        return [leaf.detach() for leaf in leaves] if self.detaches else leaves

    def _extra(
        self,
        inputs: Tensor,
        length: int,
        batch: int,
        states: Sequence[Tensor],
        lengths: Any,
        resets: Any,
        context: Tree,
        forced: tuple[Any, Any] | None,
    ) -> Extra | None:
        """What the rewrites read; None where lengths, resets, context or targets are not as they should be."""
        if forced is not None and (lengths is resets is context is forced[1] is None) and not self.reads_time:
            targets = forced[0]
            if self.same_form is None:
                form = targets.dtype, tuple(targets.shape[2:]), targets.device  # part of the signature
                self.same_form = form == (*self.target_form, self.device)
            if self.same_form and targets.size(0) == length and targets.size(1) == batch:
                return {TARGET: targets}  # no check or conversion is needed
        call = Call(inputs, None, length, batch, self.device, sequences=[(self.names[0], inputs)])
        call.states = list(zip(self.state_names, states, strict=True))
        try:
            call.lengths = checked_lengths(lengths, length, batch, self.device)
            call.resets = checked_mask("resets", resets, length, batch, self.device, ArgumentAxes())
            if context is not None:
                call.contexts = checked_context(self.cell, context, batch, self.device)
            if forced is not None:
                call.targets, call.coin = checked_forcing(self.cell, call, *forced, ArgumentAxes())
        except LeporelloError:
            return None
        if lengths is not None or self.reads_time:
            times = self._times
            self._times = call.times = times if times is not None and len(times) == length else times_of(call)
        if resets is not None:
            call.initial = reset_state(self.cell, states, batch, self.state_options)
        return extra_values(call, self.plan.loop)

    def _passing(self, length: int, batch: int, past: Tensor | None) -> Passing:
        """What each step passes back; that of the last call where weights and sizes are the same.

        past   where rows have ended, (length, batch); None for a call without lengths
        """
        if past is not None or not self.gradient.weights_stay or not torch.is_grad_enabled():
            return passing_for(self.gradient, length, batch, self.device, self.weight_dtype, past)
        *sizes, passes = self._weights
        if sizes != [length, batch]:
            passes = passing_for(self.gradient, length, batch, self.device, self.weight_dtype, None)
            weights = None if passes.weights is None else passes.weights.contiguous()
            passes = Passing(weights, passes.groups, passes.limit)
            self._weights = (length, batch, passes)
        return passes


def _without_length(leaf: Tensor) -> Tensor:
    return leaf.squeeze(0)


def _zeros(cell: nn.Module, call: Call) -> list[tuple[tuple[int, ...], torch.dtype]] | None:
    """Shapes and dtypes of a state that begins with zeros; None where the cell makes its own."""
    if not isinstance(cell, Cell) or type(cell).initial_state is not Cell.initial_state or len(cell.initial):
        return None
    return [(tuple(leaf.shape[1:]), leaf.dtype) for _, leaf in call.states]
