"""`Recurrent`: a cell over a sequence. The module most people need.

A call with a new signature is checked, planned and run; one with a signature seen before is run by its `CachedCall`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

import torch
from torch import Tensor, nn

from leporello.call import exported, graph_arguments  # noqa: F401  files of torch.export need their operators
from leporello.call.arguments import Call, checked_call, repacked
from leporello.call.cached_call import CachedCall
from leporello.call.checks import EAGER
from leporello.call.explain import Explanation, explanation
from leporello.call.inputs import map_tensors, time_first
from leporello.call.plan_cache import PlanCache, detached_for, handle_of, rewritten
from leporello.call.signature import signature
from leporello.call.transformed import TRANSFORMED, run_transformed
from leporello.call.values import counted, extra_values, values_of
from leporello.engine.choice import refuse_unknown
from leporello.engine.functorch_levels import is_transforming
from leporello.engine.state_gradient import Passing
from leporello.errors import ArgumentError, LeporelloError, MissingState
from leporello.gradient.method import Method
from leporello.gradient.through_time import Full
from leporello.loop.batch_axis import Axes, BatchAxis, batch_in_front
from leporello.loop.cell import Cell, features_of
from leporello.loop.construction import Constructed
from leporello.loop.fake_tensors import load_tracer
from leporello.loop.state import Tree
from leporello.loop.step import as_module, place_of
from leporello.loop.torch_names import OwnNames
from leporello.nets.forward_hooks import call_hooks, has_forward_hooks, observed_cell
from leporello.nets.typing import CallArguments, EngineName, NetworkOptions, Output, State, Step
from leporello.text_table import html_text
from leporello.view.folded_loop import FoldedLoop


class Recurrent(Constructed, OwnNames, nn.Module, Generic[Output, State]):
    """A cell, run over a sequence by an engine.

        state = cell.initial_state(batch) if state is None
        for t in range(length):
            outputs[t], state = cell(inputs[t], state)
        return outputs, state

    cell         an lp.Cell, or any module or function (x, state) -> (output, next state)
    gradient     how gradients are computed: lp.Full(), lp.Truncated(35) within windows, lp.RTRL(), lp.UORO()
    engine       "auto", "cpu", "gpu", "stepwise", "reference" or "exact"; explain() says what auto chose
    batch_first  sequences are (batch, length, ...) instead of (length, batch, ...)
    batch_axis   the axis of the state that is the batch, where it is not the first: 1 for (layers, batch, hidden) as
                 torch.nn.GRU has it; or one for each leaf, {"h": 1}

    >>> def leaky(x, h):
    ...     h = 0.9 * h + 0.1 * torch.tanh(x)
    ...     return h.square(), h
    >>> outputs, state = Recurrent(leaky)(torch.randn(5, 2, 3), torch.zeros(2, 3))
    >>> outputs.shape, state.shape
    (torch.Size([5, 2, 3]), torch.Size([2, 3]))
    """

    @overload
    def __init__(self, cell: Step[Output, State], **options: Unpack[NetworkOptions]) -> None: ...

    @overload
    def __init__(self, cell: Callable[..., tuple[Output, State]], **options: Unpack[NetworkOptions]) -> None: ...

    @overload
    def __init__(self, cell: Any, **options: Unpack[NetworkOptions]) -> None: ...

    def __init__(
        self,
        cell: Any,
        *,
        gradient: Method | None = None,
        engine: EngineName = "auto",
        batch_first: bool = False,
        batch_axis: Axes | None = None,
    ) -> None:
        super().__init__()
        refuse_unknown(engine)
        gradient = Full() if gradient is None else gradient
        refuse_no_method(gradient)
        self.cell = as_module(cell) if batch_axis is None else BatchAxis(as_module(cell), batch_axis)
        self.gradient = gradient
        self.engine = engine
        self.batch_first = batch_first
        self._plan_cache = PlanCache()
        self._handle = handle_of(self)
        load_tracer()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handle = handle_of(self)  # a copy is another network

    if TYPE_CHECKING:

        def __call__(
            self, inputs: Tree = None, state: Tree = None, **arguments: Unpack[CallArguments]
        ) -> tuple[Output, State]: ...

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
        time: Any = None,
        context: Tree = None,
        gradient: Method | None = None,
    ) -> tuple[Output, State]:
        """Outputs and final state.

        inputs    (length, batch, ...), a tree of such tensors, a PackedSequence, or None for a system without input
        state     the state before the first step; by default the cell's initial state
        lengths   (batch,) integers: rows end there; outputs past it are zero, the final state is the one at the end
        resets    (length, batch) booleans: where true, the state is the initial one before that step
        targets   for cells with feedback: the true values, fed back instead of the outputs; or class indices
        forcing   a probability or a (length, batch) mask of where targets are fed back; 1 by default
        steps     the length, for a call without inputs
        draws     random numbers to use instead of fresh ones, as `draw` gives them
        time      the number of the first step, for cells that read `lp.time()`: 0 by default; or one per row
        context   tensors that every step reads as its third argument: (batch, ...), a tree of such tensors, or
                  lp.shared(tensor) for one without a batch axis
        gradient  how the gradients of this call are computed; by default as the network says
        """
        if gradient is not None:
            refuse_no_method(gradient)
        if torch.compiler.is_compiling():
            arguments = (inputs, state, lengths, resets, targets, forcing, draws, steps)
            return _graph_call(self, *arguments, time=time, context=context, gradient=gradient)
        gradient = self.gradient if gradient is None else gradient
        key, results = None, None
        if steps is None and time is None and not is_transforming():
            before = batch_in_front(self.cell, state)
            key = signature(inputs, before, lengths, resets, context, self.engine, gradient, targets, forcing)
            cached = self._cached(key)
            if cached is not None:
                given = inputs, resets, targets, forcing
                x, masks, fed_back, coin = map(time_first, given) if self.batch_first else given
                results = cached.run(x, state, lengths, masks, context, fed_back, coin, draws)
        if results is None and has_forward_hooks(self.cell):
            (outputs, calls), state = self._observed()(
                inputs,
                state,
                lengths=lengths,
                resets=resets,
                targets=targets,
                forcing=forcing,
                steps=steps,
                draws=draws,
                time=time,
                context=context,
                gradient=gradient,
            )
            call_hooks(self.cell, calls, batch_first=self.batch_first)
            return outputs, state
        if results is None:
            call = self._checked(
                inputs,
                state,
                lengths=lengths,
                resets=resets,
                targets=targets,
                forcing=forcing,
                steps=steps,
                draws=draws,
                time=time,
                context=context,
            )
            results = self._run(call, gradient=gradient, key=key)
            if call.packed is not None:
                return repacked(results[0], call.packed), results[1]
        if not self.batch_first:
            return results
        return map_tensors(lambda leaf: leaf.transpose(0, 1), results[0]), results[1]

    def step(
        self,
        x: Tree = None,
        state: Tree = None,
        *,
        reset: Tensor | None = None,
        target: Tensor | None = None,
        forcing: Any = None,
        draws: Sequence[Tensor] | None = None,
        time: Any = None,
        context: Tree = None,
    ) -> tuple[Output, State]:
        """One step: output and next state. Arguments as in a call, without the length axis."""
        if torch.compiler.is_compiling():
            arguments = (x, state, None, reset, target, forcing, draws)
            return _graph_call(self, *arguments, time=time, context=context, one_step=True)
        key = None
        plain = reset is None and target is None and forcing is None and time is None
        if plain and not is_transforming():
            key = signature(
                x, batch_in_front(self.cell, state), None, None, context, self.engine, self.gradient, one_step=True
            )
            cached = self._cached(key)
            results = None if cached is None else cached.step(x, state, context, draws)
            if results is not None:
                return results
        if has_forward_hooks(self.cell):
            options = {"reset": reset, "target": target, "forcing": forcing, "draws": draws, "time": time}
            (output, calls), state = self._observed().step(x, state, context=context, **options)
            call_hooks(self.cell, calls, batch_first=False, one_step=True)
            return output, state
        call = checked_call(
            self.cell,
            x,
            state,
            resets=reset,
            targets=target,
            forcing=forcing,
            draws=draws,
            time=time,
            context=context,
            one_step=True,
            range_checks=TRANSFORMED if is_transforming() else EAGER,
        )
        output, state = self._run(call, key=key)
        return map_tensors(lambda leaf: leaf.squeeze(0), output), state

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
        call = self._checked(inputs, state, **arguments)
        loop = rewritten(self._plan_cache.loop(self.cell, call), self.cell, call)
        values = zip(loop.inputs, values_of(loop, call), strict=True)
        return [value for port, value in values if port.is_drawn]

    def explain(
        self,
        inputs: Tree = None,
        state: Tree = None,
        *,
        passes: bool = False,
        timing: bool = False,
        **arguments: Any,
    ) -> Explanation:
        """Which engine runs this call and why, what runs at once and what step by step, what is saved.

        passes   whether to add every rewrite of the loop in the order in which they ran, with its size behind each
        timing   whether to add where the time of the first such call went
        """
        call = detached_for(self._checked(inputs, state, **arguments), self.gradient)
        plan, choice = self._plan_cache.plan(self.cell, call, self.gradient, self.engine)
        batch = counted(call.batch, plan.loop, extra_values(call, plan.loop))
        return explanation(plan, choice, self.gradient, call.length, batch, passes=passes, timing=timing)

    def fold(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> FoldedLoop:
        """The Loop of a call with these arguments."""
        call = self._checked(inputs, state, **arguments)
        return FoldedLoop.of(rewritten(self._plan_cache.loop(self.cell, call), self.cell, call))

    @property
    def clipped(self) -> float | None:
        """The share of (step, row) pairs at which `clip_state` acted in the last gradient that went back; else None."""
        recent = self._plan_cache.recent
        return None if recent is None or recent.plan.clipped is None else recent.plan.clipped.share

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf() if isinstance(self.cell, Cell) else None

    def _checked(self, inputs: Tree, state: Tree, **arguments: Any) -> Call:
        checks = TRANSFORMED if is_transforming() else EAGER
        return checked_call(self.cell, inputs, state, batch_first=self.batch_first, range_checks=checks, **arguments)

    def _observed(self) -> Recurrent:
        """The network whose outputs also hold what hooks on modules of the cell are called with."""
        kept = self._plan_cache.observed
        if kept is None or kept[0] is not self.cell:
            kept = self._plan_cache.observed = (self.cell, Recurrent(observed_cell(self.cell)))
        net: Recurrent = kept[1]
        net.gradient, net.engine, net.batch_first = self.gradient, self.engine, self.batch_first
        return net

    def _cached(self, key: Hashable | None) -> CachedCall | None:
        """The cached call of a signature; None for a signature that is new."""
        if key is None:
            return None
        cache = self._plan_cache
        cached = cache.recent
        if cached is None or cached.key != key:
            cached = cache.calls.get(key)
            if cached is None:
                return None
            cache.recent = cached
        return cached if cached.cell is self._modules["cell"] else None

    def _run(
        self,
        call: Call,
        passing: Passing | None = None,
        *,
        gradient: Method | None = None,
        key: Hashable | None = None,
    ) -> tuple[Tree, Tree]:
        """Plan and run a checked call.

        passing    what each step passes back to the step before; by default as the gradient method has it
        gradient   the gradient method; by default the network's own
        key        the signature of the call, if it has one
        """
        gradient = self.gradient if gradient is None else gradient
        call = detached_for(call, gradient)
        if is_transforming():
            return run_transformed(self, call, gradient)
        cached = self._plan_cache.cached_call(self.cell, call, gradient, self.engine, key)
        return cached.run_checked(call, passing)

    def _repr_html_(self) -> str:
        return shown(self)

    def _drawn(self) -> FoldedLoop | None:
        """The Loop of the last trace; before the first call, that of a built-in cell, whose inputs are known."""
        for loop in reversed(self._plan_cache.loops.values()):
            return FoldedLoop.of(loop)
        features = features_of(self.cell)
        parameter = next(self.cell.parameters(), None)
        if features is None or parameter is None:
            return None
        with torch.no_grad(), contextlib.suppress(LeporelloError):
            inputs = torch.zeros(1, 1, features, dtype=parameter.dtype, device=parameter.device)
            return self.fold(inputs)
        return None

    def extra_repr(self) -> str:
        return f"engine={self.engine!r}, gradient={self.gradient}" + (", batch_first=True" if self.batch_first else "")


def shown(network: nn.Module) -> str:
    """HTML for notebooks: the modules with their sizes, and drawings of the steps whose form is known."""
    nets = [module for module in network.modules() if isinstance(module, Recurrent)]
    return html_text(repr(network)) + "".join(loop._repr_svg_() for net in nets if (loop := net._drawn()) is not None)


def refuse_no_method(gradient: Any) -> None:
    if not isinstance(gradient, Method):
        raise ArgumentError(
            "the argument 'gradient' is no gradient method.",
            came=repr(gradient),
            expected="an object such as lp.Full() or lp.Truncated(35)",
            tries="leave out gradient=: exact gradients are the default",
        )


def _graph_call(net: Recurrent, *arguments: Any, gradient: Method | None = None, **options: Any) -> tuple[Tree, Tree]:
    """A call while torch.compile makes a graph.

    The import stands here because it loads torch._dynamo, which takes seconds and which only a compiler needs.
    """
    from leporello.call.compiled import in_graph, refuse_own_method

    refuse_own_method(gradient)
    return in_graph(net, *arguments, **options)
