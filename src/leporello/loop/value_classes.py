"""Which values of a step vary with time, and which carry rows: the classes that decide where a value is computed.

Knows a graph and its ports; knows nothing of stages.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import has_rows
from leporello.loop.loop import Loop

aten = torch.ops.aten


class ValueClass(Enum):
    """How a value depends on time and rows."""

    COUNT = "a number made of the number of rows"
    FIXED = "made of invariants alone: once a call"
    TIMELESS = "one per row, the same at every step: once a call"
    VARYING = "one per row and step"
    REDUCED = "summed over rows: a part of a total"
    FINISHED = "made of totals: once a call, at the end"


# Operators that only look at a value another way, without making it smaller: never worth storing.
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.expand_as.default,
}


def is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in VIEWS


PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


def multiplies(node: fx.Node) -> bool:
    """Whether it is a product of matrices."""
    return node.op == "call_function" and node.target in PRODUCTS


def is_part(node: fx.Node) -> bool:
    """Whether it takes one of several results of the operator before it."""
    return node.op == "call_function" and node.target is operator.getitem


def classes(loop: Loop) -> dict[fx.Node, ValueClass]:
    """The class of each value. A state that no step changes is timeless."""
    delays = loop.delays.values()
    kept = {leaving for entering, leaving in delays if entering is leaving}
    found: dict[fx.Node, ValueClass] = {next(iter(loop.graph.nodes)): ValueClass.COUNT}
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind == "invariant" and not port.rows:
            found[node] = ValueClass.FIXED
        else:
            found[node] = ValueClass.TIMELESS if port.kind == "invariant" or node in kept else ValueClass.VARYING
    for node in loop.nodes:
        found[node] = _class(node, {found[source] for source in node.all_input_nodes})
    return found


def _class(node: fx.Node, sources: set[ValueClass]) -> ValueClass:
    value = node.meta["val"]
    if not isinstance(value, (Tensor, tuple, list)):
        return ValueClass.COUNT
    rows = has_rows(value)
    if is_part(node) and sources == {ValueClass.REDUCED}:
        return ValueClass.REDUCED
    if ValueClass.VARYING in sources:
        return ValueClass.VARYING if rows else ValueClass.REDUCED
    if sources & {ValueClass.REDUCED, ValueClass.FINISHED}:
        return ValueClass.FINISHED
    if ValueClass.TIMELESS in sources and not rows:
        return ValueClass.REDUCED  # summed over rows, and over steps by whoever adds the totals
    return ValueClass.TIMELESS if rows else ValueClass.FIXED


Point = TypeVar("Point", bound=Hashable)


def components(points: Iterable[Point], before: Mapping[Point, Iterable[Point]]) -> list[list[Point]]:
    """Parts in which every point reaches every other; a part comes after all it depends on.

    before   for each point, those it depends on
    """
    number: dict[Point, int] = {}
    lowest: dict[Point, int] = {}
    waiting: list[Point] = []
    held: set[Point] = set()
    found: list[list[Point]] = []
    for start in points:
        if start in number:
            continue
        number[start] = lowest[start] = len(number)
        waiting.append(start)
        held.add(start)
        path = [(start, iter(before.get(start, ())))]
        while path:
            point, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    parent = path[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[point])
                if lowest[point] == number[point]:
                    found.append(_popped(waiting, held, point))
            elif following not in number:
                number[following] = lowest[following] = len(number)
                waiting.append(following)
                held.add(following)
                path.append((following, iter(before.get(following, ()))))
            elif following in held:
                lowest[point] = min(lowest[point], number[following])
    return found


def _popped(waiting: list[Point], held: set[Point], last: Point) -> list[Point]:
    part = []
    while True:
        point = waiting.pop()
        held.discard(point)
        part.append(point)
        if point == last:
            return part


def ordered(loop: Loop, kinds: Mapping[fx.Node, ValueClass]) -> list[list[fx.Node]]:
    """Components of what varies, each after what it depends on; a state depends on what enters its delay."""
    varying = [node for node, kind in kinds.items() if kind is ValueClass.VARYING]
    before = {node: list(node.all_input_nodes) for node in varying}
    for into, out in loop.delays.values():
        if out in before:
            before[out].append(into)
    return components(
        varying, {node: [s for s in found if kinds[s] is ValueClass.VARYING] for node, found in before.items()}
    )


def values_on_cycles(loop: Loop) -> set[fx.Node]:
    """What must run step by step."""
    return {node for component in ordered(loop, classes(loop)) if len(component) > 1 for node in component}


def states_on_cycles(loop: Loop) -> set[str]:
    """The states whose delay closes a cycle; the others are constant, or a mere shift."""
    cyclic = values_on_cycles(loop)
    return {name for name, (_, out) in loop.delays.items() if out in cyclic}
