"""`Stage` and `Split`: the records a split makes and an engine runs.

Knows what each stage reads and writes; knows nothing of how stages are found or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.loop import Loop
from leporello.loop.value_classes import ValueClass, is_part, is_view


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """Part of a split.

    kind     "once": a call's beginning, from invariants; "at once": all steps together, with length x batch rows;
             "inside": step by step; "finish": a call's end, from totals
    graph    placeholders: the number of rows, then `reads`; results: for an inside the next states, then `writes`
    reads    values of the loop's graph that come from elsewhere
    writes   values that others need
    states   for an inside the states on its cycle; elsewhere the states that are a mere shift by one step
    """

    kind: Literal["once", "at once", "inside", "finish"]
    graph: fx.Graph
    reads: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]
    states: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Stage, {self.kind}: {', '.join(self.operators) or 'nothing but views'}>"

    @property
    def operators(self) -> list[str]:
        """The names of what runs here, in order, without those that only look at a value another way."""
        return [
            _spelt(node)
            for node in self.graph.nodes
            if node.op == "call_function" and not is_view(node) and not is_part(node)
        ]

    @property
    def products(self) -> list[str]:
        """The invariants that are multiplied here, by name, in order."""
        places = [node for node in self.graph.nodes if node.op == "placeholder"][1:]
        homes = dict(zip(places, self.reads, strict=True))
        names = []
        for node in self.graph.nodes:
            if node.op == "call_function" and _spelt(node) in ("mm", "addmm", "bmm", "baddbmm"):
                names += [name for factor in node.args[-2:] for name in _origins(factor, homes)]
        return names


def _spelt(node: fx.Node) -> str:
    target: Any = node.target
    return target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else target.__name__


def _origins(factor: Any, homes: Mapping[fx.Node, fx.Node]) -> list[str]:
    """The names of the invariants that a factor is made of, [] if it varies."""
    while is_view(factor):
        factor = factor.args[0]
    if factor.meta.get("class") is not ValueClass.FIXED:
        return []
    found, waiting = [], [homes.get(factor, factor)]
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            found.append(str(node.meta.get("label") or node.name))
        waiting += node.all_input_nodes
    return [" and ".join(dict.fromkeys(found[::-1]))]


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
        return [stage for stage in self.stages if stage.kind == "inside"]

    @property
    def parallel(self) -> bool:
        """Whether no step waits for another."""
        return not self.insides

    @property
    def inside(self) -> Stage | None:
        """The one inside, None if there is none or several."""
        return self.insides[0] if len(self.insides) == 1 else None

    @property
    def before(self) -> Stage | None:
        """What runs on all steps at once before the one inside."""
        return self._beside(-1)

    @property
    def after(self) -> Stage | None:
        """What runs on all steps at once after the one inside."""
        return self._beside(+1)

    def _beside(self, way: int) -> Stage | None:
        if self.inside is None:
            return None
        place = self.stages.index(self.inside) + way
        stage = self.stages[place] if 0 <= place < len(self.stages) else None
        return stage if stage is not None and stage.kind == "at once" else None


def shift(value: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """A sequence one step later, on flat rows: the initial rows, then all steps but the last."""
    batch = initial.shape[0]
    return torch.cat([value[batch:], initial]) if reverse else torch.cat([initial, value[: value.shape[0] - batch]])


class StageWriter:
    """The graph of one stage while it grows."""

    def __init__(
        self, kind: Literal["once", "at once", "inside", "finish"], loop: Loop, kinds: dict[fx.Node, ValueClass]
    ):
        self.kind = kind
        self.loop = loop
        self.kinds = kinds
        self.graph = fx.Graph()
        self.reads: list[fx.Node] = []
        self.writes: list[fx.Node] = []
        self.states: list[str] = []
        self._entering = {out: (name, into) for name, (into, out) in loop.delays.items()}
        self._rows = self.graph.placeholder("rows")
        self._last = self._rows
        self._places: dict[fx.Node, fx.Node] = {}  # the placeholder of each value that is read
        self._made: dict[fx.Node, fx.Node] = {next(iter(loop.graph.nodes)): self._rows}

    def has(self, node: fx.Node) -> bool:
        return node in self._made and node not in self.reads

    def has_initial(self, node: fx.Node) -> bool:
        """Whether it reads this state's value before the first step."""
        return node in self._entering and self._entering[node][0] in self.states

    def compute(self, node: fx.Node) -> fx.Node:
        """Let this stage compute a value of the loop."""
        if node in self._made:
            return self._made[node]
        if node in self._entering:
            return self._delayed(node)
        made = self.graph.node_copy(node, self._value)
        made.meta["class"] = self.kinds[node]
        self._made[node] = made
        return made

    def write(self, node: fx.Node) -> None:
        """Let others see a value."""
        if node not in self.writes:
            self._value(node)
            self.writes.append(node)

    def _value(self, node: fx.Node) -> fx.Node:
        """A value in this stage: made before, copied, or read."""
        if node in self._made:
            return self._made[node]
        return self.compute(node) if self._copies(node) else self._read(node)

    def _copies(self, node: fx.Node) -> bool:
        """Whether to compute here what another stage could hand over."""
        kind = self.kinds[node]
        if node.op == "placeholder":
            return False
        if kind is ValueClass.COUNT:
            return True
        if self.kind == "once" or (self.kind == "finish" and kind is ValueClass.FINISHED):
            return True
        if kind is ValueClass.TIMELESS:
            return self.kind == "at once"  # with the rows of all steps
        return kind is ValueClass.VARYING and (is_view(node) or clean_row_axis(node.meta["val"]) is None)

    def _delayed(self, node: fx.Node) -> fx.Node:
        """A state that leaves its delay: on a cycle an input of each step, elsewhere a shift of what enters."""
        name, into = self._entering[node]
        self.states.append(name)
        if self.kind == "inside":
            self._made[node] = self._placeholder(node)
            return self._made[node]
        entering = self._value(into)
        initial = self._placeholder(node)
        self.reads.append(node)
        self._made[node] = self.graph.call_function(shift, (entering, initial, self.loop.reverse))
        self._made[node].meta.update(node.meta)
        self._made[node].meta["class"] = ValueClass.VARYING
        return self._made[node]

    def _read(self, node: fx.Node) -> fx.Node:
        self.reads.append(node)
        self._made[node] = self._placeholder(node)
        return self._made[node]

    def _placeholder(self, node: fx.Node) -> fx.Node:
        with self.graph.inserting_after(self._last):
            made = self.graph.placeholder(node.name)
        made.meta.update(node.meta)
        made.meta["class"] = self.kinds[node]
        self._last = self._places[node] = made
        return made

    def stage(self) -> Stage:
        """The finished stage; an inside takes its states first and hands on the next ones first."""
        delays = self.loop.delays
        cycle = list(self.states) if self.kind == "inside" else []
        results = [self._value(delays[name][0]) for name in cycle] + [self._made[node] for node in self.writes]
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()
        varying = [node for node in self.reads if self.kinds[node] is ValueClass.VARYING]
        reads = [*(delays[name][1] for name in cycle), *varying, *(node for node in self.reads if node not in varying)]
        last = self._rows
        for node in reads:
            last.append(self._places[node])
            last = self._places[node]
        return Stage(self.kind, self.graph, tuple(reads), tuple(self.writes), tuple(self.states))
