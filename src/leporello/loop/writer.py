"""`Writer`: builds the graph of one stage, value by value.

Knows what its stage computes itself, copies from others because it is not worth storing, and reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import fx

from leporello.loop.classes import Class, is_view
from leporello.loop.family import clean_row_axis
from leporello.loop.stages import Stage, shift

if TYPE_CHECKING:
    from leporello.loop.loop import Loop


class Writer:
    """The graph of one stage while it grows."""

    def __init__(self, kind: Literal["once", "at once", "inside", "finish"], loop: Loop, kinds: dict[fx.Node, Class]):
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
        if kind is Class.COUNT:
            return True
        if self.kind == "once" or (self.kind == "finish" and kind is Class.FINISHED):
            return True
        if kind is Class.TIMELESS:
            return self.kind == "at once"  # with the rows of all steps
        return kind is Class.VARYING and (is_view(node) or clean_row_axis(node.meta["val"]) is None)

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
        self._made[node].meta["class"] = Class.VARYING
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
        varying = [node for node in self.reads if self.kinds[node] is Class.VARYING]
        reads = [*(delays[name][1] for name in cycle), *varying, *(node for node in self.reads if node not in varying)]
        last = self._rows
        for node in reads:
            last.append(self._places[node])
            last = self._places[node]
        return Stage(self.kind, self.graph, tuple(reads), tuple(self.writes), tuple(self.states))
