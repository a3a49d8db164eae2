"""The rewrite `tangent`: a Loop that carries a directional derivative forward in time, along with its values.

Each input that moves has its tangent as one more input, each floating output its tangent as one more output; those of
states are states. The derivative of a step is that of its vector-Jacobian product with respect to the vector, in which
the product is linear: so it needs no rules but those of `differentiate`, and own gradients count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leporello.loop.graph import copied, placeholders, traceable
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import kept
from leporello.loop.port import Port, Role
from leporello.loop.tracing.graph_cleanup import WithoutAssertions, label_values, tidy
from leporello.rewrite.differentiate import free_name, refusals

aten = torch.ops.aten


def tangent(loop: Loop, moves: Sequence[bool]) -> Loop:
    """The Loop of values and tangents: inputs and outputs as before, then the tangents, in the same order.

    Tangents are those of the inputs that move and of all floating states, and of all floating outputs.

    moves   for each input whether it has a tangent
    """
    moving = [
        moved or (port.kind == "state" and port.is_floating) for port, moved in zip(loop.inputs, moves, strict=True)
    ]
    names = {port.name for port in (*loop.inputs, *loop.outputs)}
    inputs = [*loop.inputs, *(_tangent_port(p, names) for p, moved in zip(loop.inputs, moving, strict=True) if moved)]
    outputs = (*loop.outputs, *(_tangent_port(port, names) for port in loop.outputs if port.is_floating))
    family, forward = loop.family, traceable(loop.graph, loop.family)

    def function(rows: Any, values: list[Tensor], changes: list[Tensor]) -> list[Tensor]:
        leaves = [v.detach().requires_grad_() if moved else v for v, moved in zip(values, moving, strict=True)]
        with torch.enable_grad(), WithoutAssertions():
            results = forward(rows, *leaves)
            sources = [leaf for leaf, moved in zip(leaves, moving, strict=True) if moved]
            of_results = _changes(results, sources, changes)
        pairs = zip(loop.outputs, results, of_results, strict=True)
        added = [torch.zeros_like(v) if change is None else change for port, v, change in pairs if port.is_floating]
        return [*(value.detach() for value in results), *(change.detach() for change in added)]

    tensors = [family.tensor(port.shape, port.dtype, port.device, rows=port.rows) for port in inputs]
    count = len(loop.inputs)
    with refusals(loop), kept():
        module = family.graph_of(function, family.rows, tensors[:count], tensors[count:])
    graph, _ = copied(module.graph)
    for node in list(graph.nodes):
        if node.target is aten.detach.default:  # added by autograd, without effect here
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    found = tidy(graph, module, family)
    graph.eliminate_dead_code()
    constants = {free_name(name, loop.constants): value for name, value in found.items()}
    inputs += [Port("invariant", n, tuple(c.shape), c.dtype, c.device, rows=False) for n, c in constants.items()]
    label_values(graph, inputs, placeholders(graph)[1:], {})
    return loop.replace(
        name=f"tangent of {loop.name}",
        graph=graph,
        inputs=tuple(inputs),
        outputs=outputs,
        constants={**loop.constants, **constants},
        last_step_outputs=(),
        signature=None,
    )


def _changes(results: Sequence[Tensor], sources: Sequence[Tensor], changes: Sequence[Tensor]) -> list[Tensor | None]:
    """How some results change with their sources; None for one that does not."""
    moved = [result for result in results if result.requires_grad]
    of_moved: Sequence[Tensor | None] = [None] * len(moved)
    if moved:
        vectors = [torch.zeros_like(result).requires_grad_() for result in moved]
        products = torch.autograd.grad(moved, sources, vectors, allow_unused=True, create_graph=True)
        pairs = [(p, change) for p, change in zip(products, changes, strict=True) if p is not None and p.requires_grad]
        if pairs:
            ends, directions = zip(*pairs, strict=True)
            of_moved = torch.autograd.grad(ends, vectors, directions, allow_unused=True, create_graph=True)
    remaining = iter(of_moved)
    return [next(remaining) if result.requires_grad else None for result in results]


def _tangent_port(port: Port, taken: set[str]) -> Port:
    """The port of a value's tangent, with a name that no port of the Loop has."""
    name = f"tangent.{port.name}"
    while name in taken:
        name = f"tangent.{name}"
    kind: Any = "sequence" if port.kind == "draw" else port.kind
    return replace(port, kind=kind, name=name, role=Role.INPUT, of=None, distribution=None)
