"""Insides of a loop, lowered, against the values of the loop's own graph."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import leporello as lp
from leporello.kernel.decompose import decomposed
from leporello.kernel.description import Kernel
from leporello.kernel.interpreter import run
from leporello.kernel.lower import kernel_of
from leporello.kernel.lowering_context import row_axis
from leporello.loop.port import Port
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass
from tests.close import assert_close

Values = Mapping[fx.Node, Any]  # of every node of a loop's graph, at one step


@dataclass(frozen=True)
class Inside:
    """An inside with its kernel, and the values of the loop's graph that the kernel reads and writes, by place."""

    kernel: Kernel
    states: tuple[fx.Node, ...]
    following: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]
    rows: tuple[fx.Node, ...]
    fixed: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]


def insides_of(split: Split) -> list[Inside]:
    return [_inside(split, stage) for stage in split.insides]


def _inside(split: Split, stage: Stage) -> Inside:
    delays = [split.loop.delays[name] for name in stage.states]
    states = tuple(out for _, out in delays)
    others = [node for node in stage.reads if node not in states and isinstance(node.meta.get("val"), Tensor)]
    kinds = split.classes
    return Inside(
        kernel_of(split, stage, decomposed(stage.graph, split.loop.family)),
        states,
        tuple(into for into, _ in delays),
        tuple(node for node in others if kinds[node] is ValueClass.VARYING),
        tuple(node for node in others if kinds[node] is ValueClass.TIMELESS),
        tuple(node for node in others if kinds[node] not in (ValueClass.VARYING, ValueClass.TIMELESS)),
        stage.writes,
    )


def values_of_steps(loop: lp.Loop, inputs: Sequence[Tensor], steps: int, batch: int) -> list[Values]:
    """Every value of a loop's graph at every step, by torch's own operators: the slow twin; in the order of time."""
    present = list(inputs)
    places = {port.name: index for index, port in enumerate(loop.inputs) if port.kind == "state"}
    timed = [port.kind in ("sequence", "draw") for port in loop.inputs]
    found: dict[int, Values] = {}
    for time in reversed(range(steps)) if loop.reverse else range(steps):
        passed = iter([batch, *(v[time] if moves else v for v, moves in zip(present, timed, strict=True))])
        values: dict[fx.Node, Any] = {}
        for node in loop.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(passed)
            elif node.op == "call_function":
                args, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **options)
        found[time] = values
        for name, (into, _) in loop.delays.items():
            present[places[name]] = values[into]
    return [found[time] for time in range(steps)]


def random_input(port: Port, loop: lp.Loop, steps: int, batch: int, numbers: torch.Generator) -> Tensor:
    """Numbers for an input of a loop; parameters and constants are what they are."""
    value = loop.invariant(port.name) if port.kind == "invariant" else None
    if value is not None:
        return value.detach()
    shape = (batch, *port.shape) if port.rows else tuple(port.shape)
    shape = (steps, *shape) if port.kind in ("sequence", "draw") else shape
    if port.dtype.is_floating_point:
        return torch.rand(shape, generator=numbers, dtype=port.dtype) * 2 - 1
    return torch.randint(0, 2, shape, generator=numbers).to(port.dtype)


def tensors_of(inside: Inside, values: Sequence[Values], reverse: bool) -> dict[str, Any]:
    """What a kernel is passed, from the values of all steps: rows stand first."""
    first = values[-1] if reverse else values[0]
    return {
        "states": [_rows_first(node, first).contiguous() for node in inside.states],
        "reads": [torch.stack([_rows_first(node, step) for step in values]) for node in inside.reads],
        "rows": [_rows_first(node, first).contiguous() for node in inside.rows],
        "fixed": [first[node].contiguous() for node in inside.fixed],
    }


def interpreted_and_expected(
    inside: Inside, values: Sequence[Values], batch: int, order: Sequence[int] | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the interpreter gives for an inside, and what the loop's own graph has there; by name."""
    reverse = inside.kernel.reverse
    passed = tensors_of(inside, values, reverse)
    states, writes = run(inside.kernel, **passed, steps=len(values), batch=batch, order=order)
    last = values[0] if reverse else values[-1]
    found = {f"state {node}": value for node, value in zip(inside.following, states, strict=True)}
    expected = {f"state {node}": _rows_first(node, last) for node in inside.following}
    found |= {f"write {node}": value for node, value in zip(inside.writes, writes, strict=True)}
    expected |= {f"write {node}": torch.stack([_rows_first(node, v) for v in values]) for node in inside.writes}
    return found, expected


def assert_lowered_equals_graph(loop: lp.Loop, steps: int, batch: int, seed: int = 0) -> int:
    """Every inside of a loop, run by the interpreter in two orders of its blocks, gives what the loop's graph gives.

    Returns the number of insides.
    """
    split = loop.split()
    insides, numbers = insides_of(split), torch.Generator().manual_seed(seed)
    inputs = [random_input(port, split.loop, steps, batch, numbers) for port in split.loop.inputs]
    with torch.no_grad():
        values = values_of_steps(split.loop, inputs, steps, batch)
        for inside in insides:
            for order in (None, shuffled(inside.kernel, seed)):
                found, expected = interpreted_and_expected(inside, values, batch, order)
                odd = {name: ~value.isfinite() for name, value in expected.items()}
                assert all(torch.equal(~found[name].isfinite(), infinite) for name, infinite in odd.items())
                assert_close(
                    {name: value.masked_fill(odd[name], 0) for name, value in found.items()},
                    {name: value.masked_fill(odd[name], 0) for name, value in expected.items()},
                    f"{inside.kernel.text()}\nblocks in the order {order}:",
                )
    return len(insides)


def shuffled(kernel: Kernel, seed: int) -> list[int]:
    """A random order of the blocks that respects their dependencies."""
    numbers, waiting, order = random.Random(seed), set(range(len(kernel.blocks))), list[int]()
    while waiting:
        ready = [block for block in waiting if not {need.block for need in kernel.dependencies[block]} & waiting]
        order.append(numbers.choice(sorted(ready)))
        waiting.remove(order[-1])
    return order


def _rows_first(node: fx.Node, values: Values) -> Tensor:
    axis = row_axis(node)
    assert axis is not None
    value: Tensor = values[node].detach()
    return value.movedim(axis, 0)
