"""`Stage` and `Split`: the records a split makes and an engine runs.

Knows what each stage reads and writes; knows nothing of how stages are found or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, fx

from leporello.draw.picture import Picture
from leporello.loop.classes import Class, is_part, is_view
from leporello.loop.picture import Detail, Drawn, diagram, loop_picture

if TYPE_CHECKING:
    from leporello.loop.loop import Loop


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
    if factor.meta.get("class") is not Class.FIXED:
        return []
    found, waiting = [], [homes.get(factor, factor)]
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            found.append(str(node.meta.get("label") or node.name))
        waiting += node.all_input_nodes
    return [" and ".join(dict.fromkeys(found[::-1]))]


@dataclass(frozen=True, eq=False, repr=False)
class Split(Drawn):
    """A loop as a list of stages; each runs when those before it have.

    loop      the loop whose graph the stages' reads and writes are values of
    stages    in order: once, then at-once stages and insides in turn, then finish (empty ones left out)
    classes   the class of each value
    """

    loop: Loop
    stages: tuple[Stage, ...]
    classes: Mapping[fx.Node, Class]

    def __repr__(self) -> str:
        return "\n".join([f"<Split of {self.loop.name}", *(f"  {stage!r}" for stage in self.stages)]) + ">"

    def __str__(self) -> str:
        return repr(self)

    def picture(self, detail: Detail = "textbook") -> Picture:  # type: ignore[override]
        """The loop's own picture, tinted by what runs step by step and what runs on all steps at once."""
        return loop_picture(self.loop.name, diagram(self.loop, detail), stages=True)

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
