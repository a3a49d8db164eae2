"""`unfold`: the acyclic graph of a Loop over a number of steps, and its evaluation node by node.

Parameters, and what belongs to no step, appear once; everything else once per step. Slow and plain on purpose: the
engines are compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, MissingState
from leporello.loop.draws import Draw, fresh
from leporello.loop.graph import results
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.state import Tree


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The values of a loop's inputs in one run: copies, so that later changes of parameters leave it as it was."""

    batch: int
    inputs: list[Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Unfolding:
    """An acyclic graph with a copy of the step per time.

    graph      inputs named x(1) … x(n), the first state h(0), parameters once; results: each output at each time, then
               the last states. `meta["time"]` of a node is its step, 0 for first states, None for parameters;
               `meta["origin"]` is the name of the loop's node that it is a copy of
    steps      its length
    recorded   the last run, which pictures show; empty before
    """

    loop: Loop
    graph: fx.Graph
    steps: int
    recorded: list[RecordedRun] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Unfolding of {self.loop.name}: {self.steps} steps, {len(self.nodes)} operators>"

    @property
    def nodes(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def parameters(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder" and node.meta.get("time") is None][1:]

    def run(
        self,
        inputs: Tree = None,
        state: Tree = None,
        *,
        draws: Sequence[Tensor] | None = None,
        targets: Tensor | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tree, Tree]:
        """Outputs and final state, computed node by node. The strip keeps the run: `strip.svg(values=True)` shows it.

        Outputs are (steps, batch, ...), those of the last step only (batch, ...). With lengths the final state is that
        at each row's end.

        inputs   a tree of (steps, batch, ...) tensors; None for a system without input
        state    the state before the first step; by default the cell's initial state
        draws    random numbers, (steps, batch, ...) each, (steps, ...) where rows share them; fresh ones by default
        targets  what a loss compares with, (steps, batch, ...): class indices too where the loss reads a row of numbers
        given    other inputs of the loop by name: `y` of a loss, `call.target`, `call.reset` and the like
        """
        signature = self.loop.signature
        if signature is None:
            raise ArgumentError("this loop knows no structure of inputs and states.", expected="a loop from lp.fold")
        sequences = [leaf for leaf in pytree.tree_leaves(inputs) if leaf is not None]
        self._refuse_length(sequences)
        states = pytree.tree_leaves(state if state is not None else self._initial(sequences))
        batch = sequences[0].shape[1] if sequences else states[0].shape[0] if states else 1
        remaining = {
            "sequence": iter(sequences),
            "state": iter(states),
        }
        drawn = [port for port in self.loop.inputs if port.is_drawn]
        given = self._with_targets(dict(given or {}), targets)
        given |= dict(
            zip([port.name for port in drawn], self._fresh_draws(drawn, batch) if draws is None else draws, strict=True)
        )
        values = [self._value(port, batch, remaining, given) for port in self.loop.inputs]
        self.recorded[:] = [RecordedRun(batch, [value.detach().clone() for value in values])]
        evaluated = self.evaluated(batch, values)
        named = self._by_name([evaluated[node] for node in results(self.graph)])
        outputs = iter([value for (kind, _), value in named.items() if kind == "sequence"])
        finals = {
            port.of.key: named[port.key] for port in self.loop.outputs if port.role is Role.FINAL_STATE and port.of
        }
        final = [finals.get(key, value) for key, value in named.items() if key[0] == "state"]
        return (
            pytree.tree_unflatten([next(outputs) if there else None for there in signature.present], signature.outputs),
            pytree.tree_unflatten(final, signature.state),
        )

    def _with_targets(self, given: dict[str, Tensor], targets: Tensor | None) -> dict[str, Tensor]:
        """The inputs by name with the loss's target in them, class indices as the loss wants them."""
        port = next((port for port in self.loop.inputs if port.role is Role.LOSS_TARGET), None)
        if targets is not None:
            if port is None:
                raise ArgumentError(
                    "this strip has no loss that could read the argument 'targets'.",
                    tries="lp.fold(cell, x, loss=nn.functional.cross_entropy); true values that are fed back are "
                    'given={"call.target": y}',
                )
            given = {port.name: targets, **given}
        if port is not None and port.name in given:
            given[port.name] = _as_target(given[port.name], port, self._target_axes())
        return given

    def _target_axes(self) -> int:
        """The number of axes in front of one row's target: steps and batch; the batch alone at the last step."""
        return 1 if self._last_step_inputs() else 2

    def _last_step_inputs(self) -> set[int]:
        """Indices of inputs that only the last step reads, such as the target of a summary: one value, no sequence."""
        return {
            index
            for index, port in enumerate(self.loop.inputs)
            if port.role is Role.LOSS_TARGET and "L" in self.loop.last_step_outputs
        }

    def _refuse_length(self, sequences: Sequence[Tensor]) -> None:
        for leaf in sequences:
            if leaf.shape[0] != self.steps:
                raise ArgumentError(
                    "the argument 'inputs' has another length than the strip.",
                    came=f"{leaf.shape[0]} steps",
                    expected=f"{self.steps}",
                    tries=f"unfold it with loop.unfold({leaf.shape[0]})",
                )

    def _value(
        self, port: Port, batch: int, remaining: Mapping[str, Iterator[Tensor]], given: Mapping[str, Tensor]
    ) -> Tensor:
        value = given.get(port.name)
        if value is None and port.role is Role.TIME:
            value = torch.arange(self.steps, device=port.device).reshape(-1, 1, 1).expand(-1, batch, 1)
        if value is None:
            value = next(remaining[port.kind], None) if port.kind in remaining else self.loop.invariant(port.name)
        if value is None:
            raise ArgumentError(
                f"the {port.kind} '{port.name}' has no value.",
                expected=str(port),
                tries=f"strip.run(inputs, state, given={{{port.name!r}: value}})",
            )
        return value.contiguous()  # as the fake tensors of the trace were

    def _by_name(self, results: list[Tensor]) -> dict[tuple[str, str], Tensor]:
        """The results by kind and name: sequences stacked, totals summed, states after the last step.

        An output of the last step only has no step axis. States come last.
        """
        remaining = iter(results)
        columns: dict[tuple[str, str], list[Tensor]] = {}
        for time in range(1, self.steps + 1):
            for port in self.loop.outputs:
                if port.kind != "state" and (time == self.steps or port.name not in self.loop.last_step_outputs):
                    columns.setdefault((port.kind, port.name), []).append(next(remaining))
        named = {key: torch.stack(column) for key, column in columns.items()}
        for kind, name in named:
            if kind == "total":
                named[kind, name] = named[kind, name].sum(0)
            elif name in self.loop.last_step_outputs:
                named[kind, name] = named[kind, name][0]
        return {
            (port.kind, port.name): next(remaining) if port.kind == "state" else named[port.kind, port.name]
            for port in sorted(self.loop.outputs, key=lambda port: port.kind == "state")
        }

    def _initial(self, sequences: Sequence[Tensor]) -> Tree:
        module = self.loop.signature.module if self.loop.signature else None
        if not any(port.kind == "state" for port in self.loop.inputs):
            return ()
        if not hasattr(module, "initial_state"):
            raise MissingState(
                "this cell declares no initial state.",
                expected="the argument 'state'",
                tries="strip.run(inputs, state)",
            )
        floats = sequences and sequences[0].is_floating_point()
        dtype = sequences[0].dtype if floats else None
        return module.initial_state(sequences[0].shape[1] if sequences else 1, dtype=dtype)  # type: ignore[union-attr,operator]

    def _fresh_draws(self, ports: Sequence[Port], batch: int) -> list[Tensor]:
        shapes = [port.shape_of(self.steps, batch) for port in ports]
        pairs = zip(ports, shapes, strict=True)
        return [fresh(Draw(port.distribution or "uniform", shape, port.dtype, port.device)) for port, shape in pairs]

    def evaluated(
        self, batch: int, inputs: list[Tensor], crossing: Sequence[float] | None = None
    ) -> dict[fx.Node, Any]:
        """The value of every node, from the values of the loop's inputs.

        crossing   for each step the weight of the gradient that it passes back to the step before; by default 1
        """
        values: dict[fx.Node, Any] = {}
        without_time = self._last_step_inputs()
        for node in self.graph.nodes:
            if node.op == "placeholder":
                index, time = node.meta["port"], node.meta.get("time")
                value: Any = batch if index is None else inputs[index]
                values[node] = value[time - 1] if time and index not in without_time else value
            elif node.op == "call_function":
                read = values.__getitem__ if crossing is None else _weighed(values, node.meta["time"], crossing)
                args, options = fx.map_arg((node.args, node.kwargs), read)
                values[node] = node.target(*args, **options)
        return values


def _weighed(values: Mapping[fx.Node, Any], time: int, crossing: Sequence[float]) -> Callable[[fx.Node], Any]:
    """How a node of step `time` reads values: those of earlier steps with the weights of all steps between them."""

    def read(node: fx.Node) -> Any:
        value, since = values[node], node.meta.get("time")
        if since is None or since >= time or not isinstance(value, Tensor):
            return value
        fixed = value.detach()
        return fixed + math.prod(crossing[since:time]) * (value - fixed) if value.is_floating_point() else value

    return read


def _as_target(value: Tensor, port: Port, axes: int) -> Tensor:
    """A target as the loss reads it: class indices are one-hot rows where the loss was folded for rows of numbers."""
    is_index = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    if not (is_index and port.dtype.is_floating_point and len(port.shape) == 1 and value.dim() == axes):
        return value
    classes = port.shape[0]
    if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < classes:
        raise ArgumentError(
            f"the target '{port.name}' holds an index of no class.",
            came=f"{int(value.min())} to {int(value.max())}",
            expected=f"0 to {classes - 1}",
        )
    return nn.functional.one_hot(value.long(), classes).to(port.dtype)


def unfold(loop: Loop, steps: int) -> Unfolding:
    """One copy of each operator per step, every invariant once, the delays as edges from step to step."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ArgumentError("the argument 'steps' is no length.", came=repr(steps), expected="an integer of at least 1")
    graph = fx.Graph()
    shared = _shared_inputs(loop, graph)
    timed = [_timed_inputs(loop, graph, shared, time) for time in range(1, steps + 1)]
    per_step: list[fx.Node] = []
    for time, values in enumerate(timed, start=1):
        for node in loop.nodes:
            values[node] = graph.node_copy(node, values.__getitem__)
            values[node].meta.update(time=time, origin=node.name)
        finished = [values[node] for node in loop.results]
        per_step += [
            node
            for port, node in zip(loop.outputs, finished, strict=True)
            if port.kind != "state" and (time == steps or port.name not in loop.last_step_outputs)
        ]
        if time < steps:
            for into, out in loop.delays.values():
                timed[time][out] = values[into]
    last = timed[-1]
    states = [node for port, node in zip(loop.outputs, loop.results, strict=True) if port.kind == "state"]
    graph.output((*per_step, *(last[node] for node in states)))
    if loop.last_step_outputs:
        graph.eliminate_dead_code()
    return Unfolding(loop, graph, steps)


def _shared_inputs(loop: Loop, graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Add the placeholders that appear once to the graph: the number of rows, invariants, states before the first step.

    Returns them by the loop's placeholders.
    """
    rows = next(iter(loop.graph.nodes))
    shared = {rows: graph.node_copy(rows)}
    shared[rows].meta.update(port=None, time=None)
    for index, (port, node) in enumerate(zip(loop.inputs, loop.placeholders, strict=True)):
        if port.kind in ("invariant", "state"):
            shared[node] = graph.node_copy(node)
            shared[node].meta.update(port=index, time=None if port.kind == "invariant" else 0, origin=node.name)
    return shared


def _timed_inputs(loop: Loop, graph: fx.Graph, shared: dict[fx.Node, fx.Node], time: int) -> dict[fx.Node, fx.Node]:
    """Add the placeholders of one step, sequences and draws, to the graph.

    Returns them by the loop's placeholders, together with those that all steps share.
    """
    values = dict(shared)
    for index, (port, node) in enumerate(zip(loop.inputs, loop.placeholders, strict=True)):
        if port.kind in ("sequence", "draw"):
            values[node] = graph.node_copy(node)
            values[node].meta.update(port=index, time=time, origin=node.name)
    return values
