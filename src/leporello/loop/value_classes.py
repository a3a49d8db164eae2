"""Classes of values: how each depends on time and rows, and which lie on a cycle. They decide where each is computed.

A cycle is found in the graph with its delay edges, condensed into strongly connected components. A component with a
cycle must run step by step; everything else can run on all steps at once.
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


# Operators that return a view of all their input, or may: never worth storing.
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
    """Whether it is an operator of `VIEWS`."""
    return node.op == "call_function" and node.target in VIEWS


def is_transposed(node: fx.Node) -> bool:
    """Whether it is a matrix transposed."""
    if node.target is aten.t.default:
        return bool(node.meta["val"].dim() == 2)
    return node.target is aten.permute.default and node.args[1] in ([1, 0], [-1, 0], [1, -2], [-1, -2])


PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


def is_matrix_product(node: fx.Node) -> bool:
    """Whether it is a product of matrices."""
    return node.op == "call_function" and node.target in PRODUCTS


NARROWER = (torch.int8, torch.bfloat16)  # types in which matrices may be stored, narrower than those of products


def is_stored_narrower(node: fx.Node) -> bool:
    """Whether it is the factor of matrix products alone, converted from the narrower type in which it is stored."""
    if node.target is not aten._to_copy.default or node.all_input_nodes[0].meta["val"].dtype not in NARROWER:
        return False
    converted = set(node.kwargs) <= {"dtype"} and node.meta["val"].dtype == torch.float32
    return converted and not has_rows(node.meta["val"]) and all(is_matrix_product(user) for user in node.users)


def is_getitem(node: fx.Node) -> bool:
    """Whether it takes one of several results of the operator before it."""
    return node.op == "call_function" and node.target is operator.getitem


def classes(loop: Loop, *, changing: bool = False) -> dict[fx.Node, ValueClass]:
    """The class of each value of a Loop's graph. A state that no step changes is timeless.

    changing   whether that counts as varying all the same
    """
    delays = loop.delays.values()
    unchanged = set() if changing else {leaving for entering, leaving in delays if entering is leaving}
    kinds: dict[fx.Node, ValueClass] = {next(iter(loop.graph.nodes)): ValueClass.COUNT}
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind == "invariant" and not port.rows:
            kinds[node] = ValueClass.FIXED
        else:
            constant = port.kind == "invariant" or node in unchanged
            kinds[node] = ValueClass.TIMELESS if constant else ValueClass.VARYING
    for node in loop.nodes:
        kinds[node] = _class(node, {kinds[source] for source in node.all_input_nodes})
    return kinds


def _class(node: fx.Node, sources: set[ValueClass]) -> ValueClass:
    value = node.meta["val"]
    if not isinstance(value, (Tensor, tuple, list)):
        return ValueClass.COUNT
    rows = has_rows(value)
    if is_getitem(node) and sources == {ValueClass.REDUCED}:
        return ValueClass.REDUCED
    if ValueClass.VARYING in sources:
        return ValueClass.VARYING if rows else ValueClass.REDUCED
    if sources & {ValueClass.REDUCED, ValueClass.FINISHED}:
        return ValueClass.FINISHED
    if ValueClass.TIMELESS in sources and not rows:
        return ValueClass.REDUCED  # summed over rows here, and over steps by the engine that adds up totals
    return ValueClass.TIMELESS if rows else ValueClass.FIXED


Point = TypeVar("Point", bound=Hashable)


def components(points: Iterable[Point], before: Mapping[Point, Iterable[Point]]) -> list[list[Point]]:
    """Strongly connected components of a graph, each after those it depends on (Tarjan 1972, without recursion).

    before   for each point, those it depends on
    """
    number: dict[Point, int] = {}
    lowest: dict[Point, int] = {}
    stack: list[Point] = []
    on_stack: set[Point] = set()
    parts: list[list[Point]] = []
    for start in points:
        if start in number:
            continue
        number[start] = lowest[start] = len(number)
        stack.append(start)
        on_stack.add(start)
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
                    parts.append(_popped(stack, on_stack, point))
            elif following not in number:
                number[following] = lowest[following] = len(number)
                stack.append(following)
                on_stack.add(following)
                path.append((following, iter(before.get(following, ()))))
            elif following in on_stack:
                lowest[point] = min(lowest[point], number[following])
    return parts


def _popped(stack: list[Point], on_stack: set[Point], last: Point) -> list[Point]:
    part = []
    while True:
        point = stack.pop()
        on_stack.discard(point)
        part.append(point)
        if point == last:
            return part


def varying_components(loop: Loop, kinds: Mapping[fx.Node, ValueClass]) -> list[list[fx.Node]]:
    """Components of the varying values, each after what it depends on; a state depends on what enters its delay."""
    varying = [node for node, kind in kinds.items() if kind is ValueClass.VARYING]
    before = {node: list(node.all_input_nodes) for node in varying}
    for into, out in loop.delays.values():
        if out in before:
            before[out].append(into)
    return components(
        varying, {node: [s for s in sources if kinds[s] is ValueClass.VARYING] for node, sources in before.items()}
    )


def values_on_cycles(loop: Loop) -> set[fx.Node]:
    """The values that must be computed step by step."""
    return {node for component in varying_components(loop, classes(loop)) if len(component) > 1 for node in component}


def states_on_cycles(loop: Loop) -> set[str]:
    """The states whose delay closes a cycle; the others are constant, or a mere shift."""
    on_cycles = values_on_cycles(loop)
    return {name for name, (_, out) in loop.delays.items() if out in on_cycles}
