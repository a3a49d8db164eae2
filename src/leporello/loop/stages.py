"""`Stage` and `Split`, the records that `split` returns and an engine runs; `StageGraphs` builds a stage's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import operator_name, placeholders
from leporello.loop.loop import Loop
from leporello.loop.value_classes import ValueClass, is_getitem, is_matrix_product, is_stored_narrower, is_view

StageKind = Literal["once", "at once", "inside", "finish"]


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """Part of a split.

    kind     "once": a call's beginning, from invariants; "at once": all steps together, with length x batch rows;
             "inside": step by step; "finish": a call's end, from totals
    graph    placeholders: the number of rows, then `reads`; results: for an inside the next states, then `writes`
    reads    values of the loop's graph that this stage reads: inputs, and results of other stages
    writes   values of the loop's graph that others read: outputs, and what other stages read
    states   for an inside the states on its cycle; elsewhere the states that are a mere shift by one step
    """

    kind: StageKind
    graph: fx.Graph
    reads: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]
    states: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Stage, {self.kind}: {', '.join(self.operators) or 'nothing but views'}>"

    @property
    def operators(self) -> list[str]:
        """The names of the operators that run here, in order, without views."""
        return [
            operator_name(node)
            for node in self.graph.nodes
            if node.op == "call_function" and not is_view(node) and not is_getitem(node)
        ]

    @property
    def products(self) -> list[str]:
        """The name of each invariant factor of the matrix products here, in order; "W and P" if made of several."""
        return [name for names in self._invariant_factors() for name in names]

    @property
    def products_with_invariants(self) -> int:
        """How many of the matrix products here have an invariant factor; one of two invariants counts once."""
        return sum(bool(names) for names in self._invariant_factors())

    def _invariant_factors(self) -> list[list[str]]:
        """For each matrix product the names of its invariant factors."""
        in_loop = dict(zip(placeholders(self.graph)[1:], self.reads, strict=True))
        products = [node for node in self.graph.nodes if is_matrix_product(node)]
        return [[name for factor in node.args[-2:] for name in _invariants(factor, in_loop)] for node in products]


def _invariants(factor: Any, in_loop: Mapping[fx.Node, fx.Node]) -> list[str]:
    """The names of the invariants that a factor is computed from, joined by "and" to one item; [] if it varies.

    in_loop   for each placeholder of the stage its value in the loop's graph
    """
    while is_view(factor):
        factor = factor.args[0]
    if factor.meta.get("class") is not ValueClass.FIXED:
        return []
    names, pending = [], [factor]
    while pending:
        value = pending.pop()
        node = in_loop.get(value, value)
        if node.op == "placeholder":
            names.append(str(node.meta.get("label") or node.name))
        pending += node.all_input_nodes
    return [" and ".join(dict.fromkeys(names[::-1]))]


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """A loop as a list of stages; each runs when those before it have.

    loop      the loop whose graph the stages' reads and writes are values of
    stages    in order: once, then at-once stages and insides in turn, then finish (empty ones left out)
    classes   the class of each value
    """

    loop: Loop
    stages: tuple[Stage, ...]
    classes: Mapping[fx.Node, ValueClass]

    def __repr__(self) -> str:
        return "\n".join([f"<Split of {self.loop.name}", *(f"  {stage!r}" for stage in self.stages)]) + ">"

    @property
    def insides(self) -> list[Stage]:
        """The stages that run step by step."""
        return [stage for stage in self.stages if stage.kind == "inside"]

    @property
    def parallel(self) -> bool:
        """Whether no step depends on another, so that all stages run on all steps at once."""
        return not any(stage.states for stage in self.insides)

    @property
    def inside(self) -> Stage | None:
        """The one inside, None if there is none or several."""
        return self.insides[0] if len(self.insides) == 1 else None

    @property
    def before(self) -> Stage | None:
        """What runs on all steps at once before the one inside; None if nothing does, or without one inside."""
        return self._next_to_inside(-1)

    @property
    def after(self) -> Stage | None:
        """What runs on all steps at once after the one inside; None if nothing does, or without one inside."""
        return self._next_to_inside(+1)

    def _next_to_inside(self, offset: int) -> Stage | None:
        if self.inside is None:
            return None
        index = self.stages.index(self.inside) + offset
        stage = self.stages[index] if 0 <= index < len(self.stages) else None
        return stage if stage is not None and stage.kind == "at once" else None


def shift(value: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """A sequence one step later: the initial value, then all steps but the last.

    value     [steps x batch, ...], steps in the order of the inputs
    initial   [batch, ...]
    reverse   whether time runs backwards: the initial value is then at the end
    """
    batch = initial.shape[0]
    return torch.cat([value[batch:], initial]) if reverse else torch.cat([initial, value[: value.shape[0] - batch]])


class StageGraphs:
    """Builds the graph of one stage, value by value.

    A stage computes values of its own, copies some of other stages that are not worth storing, and reads the others.

    kinds      the class of each value of the loop
    drawn_in   whether an invariant that is stored narrower is converted in an inside, where it is read
    """

    def __init__(
        self,
        kind: StageKind,
        loop: Loop,
        kinds: dict[fx.Node, ValueClass],
        drawn_in: Callable[[fx.Node], bool] = lambda node: True,
    ) -> None:
        self.kind = kind
        self.drawn_in = drawn_in
        self.loop = loop
        self.kinds = kinds
        self.graph = fx.Graph()
        self.reads: list[fx.Node] = []
        self.writes: list[fx.Node] = []
        self.states: list[str] = []
        self._entering = {out: (name, into) for name, (into, out) in loop.delays.items()}
        self._rows = self.graph.placeholder("rows")
        self._last = self._rows
        self._placeholders: dict[fx.Node, fx.Node] = {}  # of the values that are read
        self._values: dict[fx.Node, fx.Node] = {next(iter(loop.graph.nodes)): self._rows}

    def has(self, node: fx.Node) -> bool:
        """Whether this stage computes a value of the loop, and does not read it."""
        return node in self._values and node not in self.reads

    def has_initial(self, node: fx.Node) -> bool:
        """Whether a value is a state whose delay is in this stage, which then reads its value before the first step."""
        return node in self._entering and self._entering[node][0] in self.states

    def compute(self, node: fx.Node) -> fx.Node:
        """Compute a value of the loop in this stage, and return its counterpart in the stage's graph."""
        if node in self._values:
            return self._values[node]
        if node in self._entering:
            return self._delayed(node)
        copy = self.graph.node_copy(node, self._value)
        copy.meta["class"] = self.kinds[node]
        self._values[node] = copy
        return copy

    def write(self, node: fx.Node) -> None:
        """Make a value an output of this stage."""
        if node not in self.writes:
            self._value(node)
            self.writes.append(node)

    def _value(self, node: fx.Node) -> fx.Node:
        """The counterpart of a value in this stage: there already, computed here, or read."""
        if node in self._values:
            return self._values[node]
        return self.compute(node) if self._recomputes(node) else self._read(node)

    def _recomputes(self, node: fx.Node) -> bool:
        """Whether to compute here what could be read from another stage."""
        kind = self.kinds[node]
        if node.op == "placeholder":
            return False
        if kind is ValueClass.COUNT:
            return True
        if self.kind == "once" or (self.kind == "finish" and kind is ValueClass.FINISHED):
            return True
        if kind is ValueClass.TIMELESS:
            rows_are_an_axis = clean_row_axis(node.meta["val"]) is not None  # others cannot be read row by row
            return self.kind == "at once" or (self.kind == "inside" and not rows_are_an_axis)
        if kind is ValueClass.FIXED:
            return self.kind == "inside" and is_stored_narrower(node) and self.drawn_in(node)
        return kind is ValueClass.VARYING and (is_view(node) or clean_row_axis(node.meta["val"]) is None)

    def _delayed(self, node: fx.Node) -> fx.Node:
        """A state that leaves its delay: on a cycle an input of each step, elsewhere a shift of what enters."""
        name, into = self._entering[node]
        self.states.append(name)
        if self.kind == "inside":
            self._values[node] = self._placeholder(node)
            return self._values[node]
        entering = self._value(into)
        initial = self._placeholder(node)
        self.reads.append(node)
        self._values[node] = self.graph.call_function(shift, (entering, initial, self.loop.reverse))
        self._values[node].meta.update(node.meta)
        self._values[node].meta["class"] = ValueClass.VARYING
        return self._values[node]

    def _read(self, node: fx.Node) -> fx.Node:
        self.reads.append(node)
        self._values[node] = self._placeholder(node)
        return self._values[node]

    def _placeholder(self, node: fx.Node) -> fx.Node:
        with self.graph.inserting_after(self._last):
            placeholder = self.graph.placeholder(node.name)
        placeholder.meta.update(node.meta)
        placeholder.meta["class"] = self.kinds[node]
        self._last = self._placeholders[node] = placeholder
        return placeholder

    def stage(self) -> Stage:
        """The finished stage; an inside has its states as first placeholders and the next states as first results.

        Behind the states come the placeholders of varying values, then the others.
        """
        delays = self.loop.delays
        cycle = list(self.states) if self.kind == "inside" else []
        results = [self._value(delays[name][0]) for name in cycle] + [self._values[node] for node in self.writes]
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()
        varying = [node for node in self.reads if self.kinds[node] is ValueClass.VARYING]
        reads = [*(delays[name][1] for name in cycle), *varying, *(node for node in self.reads if node not in varying)]
        last = self._rows
        for node in reads:
            last.append(self._placeholders[node])
            last = self._placeholders[node]
        return Stage(self.kind, self.graph, tuple(reads), tuple(self.writes), tuple(self.states))
