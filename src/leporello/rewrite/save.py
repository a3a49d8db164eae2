"""The rewrite `save`: which forward values the backward sweep is handed, and which it computes again.

Works on the pair of a Loop and its gradient: what is kept becomes an extra output of the one and an input of the other.
Weighed by cost: values that lie in memory anyway (inputs, outputs, states) are handed over; pointwise functions of
handed-over values are computed again; the rest is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from leporello.loop.classes import Class, classes, is_part, is_view
from leporello.loop.draft import Draft
from leporello.loop.family import clean_row_axis
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.rewrite.prune import prune

aten = torch.ops.aten
_PREFIXES = {"input.": "sequence", "draw.": "draw", "before.": "state"}


@dataclass(frozen=True, eq=False)
class Saved:
    """The pair after planning.

    forward    with the outputs `saved.0` … behind the loop's own
    backward   reading `saved.0` …, `output.o` for outputs it is handed, and what it still computes from
    befores    states whose sequence before each step is read -> the forward output that is their sequence after it
    """

    forward: Loop
    backward: Loop
    befores: dict[str, str]


def save(forward: Loop, backward: Loop, keep: tuple[str, ...] = ()) -> Saved:
    """Plan what is kept between the sweeps.

    keep   states whose gradient before the first step is wanted
    """
    twins = _twins(forward, backward)
    choice = _choice(forward, backward, twins)
    return _applied(forward, backward, twins, choice, keep)


def _twins(forward: Loop, backward: Loop) -> dict[fx.Node, fx.Node]:
    """For each value of the backward graph that the forward graph computes too, the forward one."""
    numbers: dict[Any, int] = {}
    symbols: dict[fx.Node, Any] = {next(iter(forward.graph.nodes)): "rows"}
    for port, node in zip(forward.inputs, forward.placeholders, strict=True):
        symbols[node] = (port.kind, port.name)
    first: dict[int, fx.Node] = {}
    for node, number in _numbered(forward, symbols, numbers).items():
        first.setdefault(number, node)
    symbols = {next(iter(backward.graph.nodes)): "rows"}
    for port, node in zip(backward.inputs, backward.placeholders, strict=True):
        symbols[node] = _forward_name(port) or ("backward", port.kind, port.name)
    found = _numbered(backward, symbols, numbers)
    return {node: first[number] for node, number in found.items() if number in first}


def _forward_name(port: Port) -> tuple[str, str] | None:
    if port.kind == "invariant":
        return ("invariant", port.name)
    for prefix, kind in _PREFIXES.items():
        if port.kind == "sequence" and port.name.startswith(prefix):
            return (kind, port.name.removeprefix(prefix))
    return None


def _numbered(loop: Loop, symbols: dict[fx.Node, Any], numbers: dict[Any, int]) -> dict[fx.Node, int]:
    """A number per value: the same for the same operator on the same values."""
    found = {node: numbers.setdefault(symbol, len(numbers)) for node, symbol in symbols.items()}
    for node in loop.nodes:
        key = (node.target, _frozen(node.args, found), _frozen(node.kwargs, found))
        found[node] = numbers.setdefault(key, len(numbers))
    return found


def _frozen(argument: Any, found: dict[fx.Node, int]) -> Any:
    if isinstance(argument, fx.Node):
        return ("value", found[argument])
    if isinstance(argument, (list, tuple)):
        return tuple(_frozen(item, found) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _frozen(value, found)) for name, value in argument.items())
    return (type(argument).__name__, argument)


def _choice(forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """The values of the backward graph that are handed over instead of computed."""
    kinds = classes(backward)
    needed = [node for node in twins if kinds[node] is Class.VARYING and any(user not in twins for user in node.users)]
    needed += [node for node in backward.results if node in twins and node not in needed]
    entering = {into: name for name, (into, _) in forward.delays.items()}
    read = {
        port.name.removeprefix("before.")
        for port, node in zip(backward.inputs, backward.placeholders, strict=True)
        if node in needed and port.name.startswith("before.")
    }
    outputs = {node for port, node in zip(forward.outputs, forward.results, strict=True) if port.kind == "sequence"}
    handed: set[fx.Node] = set()
    there = {
        node
        for port, node in zip(backward.inputs, backward.placeholders, strict=True)
        if node in needed or port.name.startswith("input.")
    }

    def free(node: fx.Node) -> bool:
        twin = twins[node]
        return twin in outputs or entering.get(twin) in read

    def cheap(node: fx.Node) -> bool:
        """Whether it lies there, or is made of what lies there by operators that cost little beside a product."""
        if node in there or kinds[node] is not Class.VARYING:
            return True
        if node.op == "placeholder" or not (free(node) or is_view(node) or _pointwise(node)):
            return False
        return free(node) or all(cheap(source) for source in node.all_input_nodes)

    def obtain(node: fx.Node) -> None:
        if node in there or node.op == "placeholder" or kinds[node] is not Class.VARYING:
            there.add(node)
            return
        sources = [source for source in node.all_input_nodes if kinds[source] is Class.VARYING]
        if free(node) and clean_row_axis(node.meta["val"]) == 0:
            handed.add(node)
        elif is_view(node) or clean_row_axis(node.meta["val"]) is None:
            for source in sources:
                obtain(source)
        elif not cheap(node):
            handed.add(node)
        else:
            for source in sources:
                obtain(source)
        there.add(node)

    for node in backward.nodes:
        if node in needed:
            obtain(node)
    return handed


_DEAR = {  # pointwise, but several nanoseconds a value: dearer than memory
    aten.tanh.default,
    aten.exp.default,
    aten.log.default,
    aten.log1p.default,
    aten.sin.default,
    aten.cos.default,
    aten.erf.default,
    aten.gelu.default,
    aten.softplus.default,
    aten.pow.Tensor_Tensor,
}


def _pointwise(node: fx.Node) -> bool:
    """Cheap beside memory: most pointwise operators, and layer norm with its parts."""
    if node.target in _DEAR:
        return False
    if is_part(node):
        return _pointwise(node.args[0])  # type: ignore[arg-type]
    if node.target in (aten.native_layer_norm.default, aten.split.Tensor, aten.slice.Tensor):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _applied(
    forward: Loop, backward: Loop, twins: dict[fx.Node, fx.Node], choice: set[fx.Node], keep: tuple[str, ...]
) -> Saved:
    first, second = Draft(forward), Draft(backward)
    names = {second_node: name for name, second_node in _outputs(first)}
    befores: dict[str, str] = {}

    def given(node: fx.Node) -> str:
        """The name of the forward output that is this value, a new one if need be."""
        if node not in names:
            names[node] = f"saved.{sum(name.startswith('saved.') for name in names.values())}"
            value = node.meta["val"]
            axis = clean_row_axis(value)
            shape = tuple(size for index, size in enumerate(value.shape) if index != axis)
            first.outputs.append((Port("sequence", names[node], shape, value.dtype, value.device), node))
        return names[node]

    for node in [node for node in backward.nodes if node in choice]:
        source = first.copies[twins[node]]
        name = given(source)
        port = next(port for port, found in first.outputs if found is source and port.kind == "sequence")
        alias = name if name.startswith("saved.") else f"output.{name}"
        copy = second.copies[node]
        if not any(port.name == alias for port, _ in second.inputs):
            made = second.add_input(Port("sequence", alias, port.shape, port.dtype, port.device))
            made.meta["val"] = copy.meta["val"]
        second.replace(copy, second.input("sequence", alias))
    planned = prune(second.close(), keep)
    for port in planned.inputs:
        if port.name.startswith("before."):
            state = port.name.removeprefix("before.")
            befores[state] = given(first.copies[forward.delays[state][0]])
    return Saved(first.close(), planned, befores)


def _outputs(draft: Draft) -> list[tuple[str, fx.Node]]:
    return [(port.name, node) for port, node in draft.outputs if port.kind == "sequence"]
