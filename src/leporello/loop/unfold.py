"""`unfold`: the acyclic graph of a Loop over so many steps, and its run, node by node.

Parameters, and what belongs to no step, stand once; everything else once per step. Slow and plain on purpose: it is
what the fast engines are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, MissingState
from leporello.loop.draws import Draw, fresh
from leporello.loop.state import Tree

if TYPE_CHECKING:
    from leporello.loop.loop import Loop


@dataclass(frozen=True, eq=False)
class Unfolding:
    """The strip: an acyclic graph with a copy of the step per time.

    graph      inputs named x(1) … x(n), the first state h(0), parameters once; results: each output at each time, then
               the last states
    steps      its length
    """

    loop: Loop
    graph: fx.Graph
    steps: int

    @property
    def nodes(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def parameters(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder" and node.meta.get("time") is None][1:]

    def run(self, inputs: Tree = None, state: Tree = None, draws: Sequence[Tensor] | None = None) -> tuple[Tree, Tree]:
        """Outputs and final state, computed node by node.

        inputs   a tree of (steps, batch, ...) tensors; None for a system without input
        state    the state before the first step; by default the cell's initial state
        draws    random numbers, (steps, batch, ...) each; fresh ones by default
        """
        loop, signature = self.loop, self.loop.signature
        if signature is None:
            raise ArgumentError("this loop knows no structure of inputs and states.", expected="a loop from lp.fold")
        sequences = [leaf for leaf in pytree.tree_leaves(inputs) if leaf is not None]
        for leaf in sequences:
            if leaf.shape[0] != self.steps:
                raise ArgumentError(
                    "the argument 'inputs' has another length than the strip.",
                    came=f"{leaf.shape[0]} steps",
                    expected=f"{self.steps}",
                    tries=f"unfold it with loop.unfold({leaf.shape[0]})",
                )
        states = pytree.tree_leaves(state if state is not None else self._initial(sequences))
        batch = (sequences[0].shape[1] if sequences else states[0].shape[0] if states else 1)
        kinds = ("sequence", "draw", "state")
        given = {"sequence": sequences, "state": states, "draw": draws or self._fresh(batch)}
        counters = dict.fromkeys(kinds, 0)
        by_port: dict[int, Any] = {}
        for index, port in enumerate(loop.inputs):
            if port.kind in counters:
                by_port[index] = given[port.kind][counters[port.kind]]
                counters[port.kind] += 1
            else:
                by_port[index] = loop.invariant(port.name)
        results = self._evaluated(batch, by_port)
        per_step = sum(port.kind != "state" for port in loop.outputs)
        outputs = [torch.stack(results[i : per_step * self.steps : per_step]) for i in range(per_step)]
        waiting = iter(outputs)
        return (
            pytree.tree_unflatten([next(waiting) if there else None for there in signature.present], signature.outputs),
            pytree.tree_unflatten(results[per_step * self.steps :], signature.state),
        )

    def _initial(self, sequences: Sequence[Tensor]) -> Tree:
        home = self.loop.signature.home if self.loop.signature else None
        if not any(port.kind == "state" for port in self.loop.inputs):
            return ()
        if not hasattr(home, "initial_state"):
            raise MissingState(
                "this cell declares no initial state.", expected="the argument 'state'", tries="strip.run(inputs, state)"
            )
        floats = sequences and sequences[0].is_floating_point()
        dtype = sequences[0].dtype if floats else None
        return home.initial_state(sequences[0].shape[1] if sequences else 1, dtype=dtype)  # type: ignore[union-attr,operator]

    def _fresh(self, batch: int) -> list[Tensor]:
        return [
            fresh(Draw(port.distribution or "uniform", (self.steps, batch, *port.shape), port.dtype, port.device))
            for port in self.loop.inputs
            if port.kind == "draw"
        ]

    def _evaluated(self, batch: int, by_port: dict[int, Any]) -> list[Tensor]:
        values: dict[fx.Node, Any] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                index, time = node.meta["port"], node.meta.get("time")
                value = batch if index is None else by_port[index]
                values[node] = value[time - 1] if time else value
            elif node.op == "call_function":
                args, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **options)
        return [values[node] for node in self.graph.output_node().args[0]]  # type: ignore[union-attr]


def unfold(loop: Loop, steps: int) -> Unfolding:
    """One copy of each operator per step, every invariant once, the delays as edges from step to step."""
    if not isinstance(steps, int) or steps < 1:
        raise ArgumentError("the argument 'steps' is no length.", came=repr(steps), expected="an integer of at least 1")
    graph = fx.Graph()
    shared = _shared_inputs(loop, graph)
    timed = [_timed_inputs(loop, graph, shared, time) for time in range(1, steps + 1)]
    per_step: list[fx.Node] = []
    for time, values in enumerate(timed, start=1):
        for node in loop.nodes:
            values[node] = graph.node_copy(node, values.__getitem__)
            values[node].meta["time"] = time
        finished = [values[node] for node in loop.results]
        per_step += [node for port, node in zip(loop.outputs, finished, strict=True) if port.kind != "state"]
        if time < steps:
            for into, out in loop.delays.values():
                timed[time][out] = values[into]
    last = timed[-1]
    graph.output(tuple([*per_step, *(last[into] for into, _ in loop.delays.values())]))
    return Unfolding(loop, graph, steps)


def _shared_inputs(loop: Loop, graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """What stands once: the number of rows, invariants, and the states before the first step."""
    rows = next(iter(loop.graph.nodes))
    shared = {rows: graph.node_copy(rows)}
    shared[rows].meta.update(port=None, time=None)
    for index, (port, node) in enumerate(zip(loop.inputs, loop.placeholders, strict=True)):
        if port.kind in ("invariant", "state"):
            shared[node] = graph.node_copy(node)
            shared[node].meta.update(port=index, time=None if port.kind == "invariant" else 0)
    return shared


def _timed_inputs(loop: Loop, graph: fx.Graph, shared: dict[fx.Node, fx.Node], time: int) -> dict[fx.Node, fx.Node]:
    values = dict(shared)
    for index, (port, node) in enumerate(zip(loop.inputs, loop.placeholders, strict=True)):
        if port.kind in ("sequence", "draw"):
            values[node] = graph.node_copy(node)
            values[node].meta.update(port=index, time=time)
    return values
