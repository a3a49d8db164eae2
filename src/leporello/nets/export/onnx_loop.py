"""A Loop as ONNX nodes: what its split runs at once stands outside, each inside is a Scan.

Sequences are (length, batch, ...); a value of an at-once stage has length x batch rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.split import split
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass
from leporello.nets.export.onnx_graph import ELEMENT_TYPES, OnnxGraph, element_type
from leporello.nets.export.onnx_operators import OPERATORS
from leporello.nets.export.onnx_step import Rule, StepWriter
from leporello.nets.export.onnx_views import VIEWS
from leporello.rewrite.real_planes import real_planes

RULES: Mapping[str, Rule] = {**OPERATORS, **VIEWS}


@dataclass(frozen=True)
class Sizes:
    """The names of the length and the batch of a call, lists of one integer each."""

    length: str
    batch: str


@dataclass
class _Written:
    """Names of values that are written already, by the node of the Loop.

    sequences   (length, batch, ...), with the rows in front
    fixed       the same at every step, with their axes as in the Loop
    """

    sequences: dict[fx.Node, str] = field(default_factory=dict)
    fixed: dict[fx.Node, str] = field(default_factory=dict)


def write_loop(
    graph: OnnxGraph, loop: Loop, given: Mapping[tuple[str, str], str], sizes: Sizes, path: str = ""
) -> dict[tuple[str, str], str]:
    """Write a Loop over a sequence, and return the names of its outputs by kind and name.

    given   the names of its inputs by kind and name; invariants that the cell holds become constants
    path    what stands in front of the names of the cell's parameters
    """
    loop = _exportable(loop)
    try:
        parted = split(loop)
    except EngineRefusal as refusal:
        raise EngineRefusal(
            f"the step cannot be exported to ONNX: {refusal.what}", cell=loop.name, **refusal.details
        ) from refusal
    written = _Written()
    inputs = list(zip(parted.loop.inputs, parted.loop.placeholders, strict=True))
    for port, node in inputs:
        table = written.sequences if port.kind == "sequence" else written.fixed
        table[node] = given[port.key] if port.key in given else _constant(graph, loop, port, path)
    for stage in parted.stages:
        writer = {"inside": _write_inside, "at once": _write_at_once}.get(stage.kind, _write_once)
        writer(graph, parted, stage, written, sizes)
    outputs = zip(parted.loop.outputs, parted.loop.results, strict=True)
    return {port.key: _output(graph, parted, port, node, written) for port, node in outputs}


def _exportable(loop: Loop) -> Loop:
    """The Loop, on real numbers; raises for one that no file can hold."""
    if loop.batch_interaction is not None:
        raise EngineRefusal(
            "the rows of a batch influence each other, and a file is for any batch.",
            cell=loop.name,
            came=loop.batch_interaction,
            tries="net.eval(), where it is a norm over the batch",
        )
    drawn = next((port for port in loop.inputs if port.is_drawn), None)
    if drawn is not None:
        node = loop.placeholders[loop.inputs.index(drawn)]
        readers = [user.meta.get("line") for user in node.users if user.meta.get("line")]
        raise EngineRefusal(
            "the step draws random numbers, and ONNX has none that can be compared.",
            cell=loop.name,
            came=f"'{drawn.name}', {drawn.distribution} numbers",
            line=readers[0] if readers else None,
            tries="net.eval(), where dropout and noise end; or pass the numbers to the step as inputs",
        )
    loop = real_planes(loop) or loop
    for port in (*loop.inputs, *loop.outputs):
        if port.planes or port.dtype not in ELEMENT_TYPES:
            raise EngineRefusal(
                f"'{port.name}' holds numbers that ONNX does not compute with.",
                cell=loop.name,
                came=str(port.dtype).removeprefix("torch.") if not port.planes else "complex numbers",
                tries="two real numbers in the place of each",
            )
    return loop


def _constant(graph: OnnxGraph, loop: Loop, port: Port, path: str) -> str:
    value = loop.invariant(port.name)
    assert value is not None, f"nothing is known of '{port.name}'"
    return graph.model.constant(value, name=path + port.name)


# ---- stages


def _write_once(graph: OnnxGraph, parted: Split, stage: Stage, written: _Written, sizes: Sizes) -> None:
    step = StepWriter(graph, sizes.batch, parted.loop.family, RULES)
    names = step.write(stage.graph, [written.fixed[node] for node in stage.reads])
    written.fixed |= dict(zip(stage.writes, names, strict=True))


def _write_at_once(graph: OnnxGraph, parted: Split, stage: Stage, written: _Written, sizes: Sizes) -> None:
    """All steps together: the rows of all steps are one axis."""
    rows = graph("Mul", sizes.length, sizes.batch, name="rows")
    states = {parted.loop.delays[name][1] for name in stage.states}
    reads = []
    for node in stage.reads:
        kind = parted.classes[node]
        if node in states or kind not in (ValueClass.VARYING, ValueClass.TIMELESS):
            reads.append(written.fixed[node])
        elif kind is ValueClass.VARYING:
            reads.append(_as_rows(graph, written.sequences[node], node))
        else:
            reads.append(_as_rows(graph, _repeated(graph, written.fixed[node], node, sizes), node))
    names = StepWriter(graph, rows, parted.loop.family, RULES).write(stage.graph, reads)
    for node, name in zip(stage.writes, names, strict=True):
        front = graph.front(name, _row_axis(node), node.meta["val"].dim())
        shape = graph.sizes(sizes.length, sizes.batch, *_features(node))
        written.sequences[node] = graph("Reshape", front, shape, name=_label(node))


def _write_inside(graph: OnnxGraph, parted: Split, stage: Stage, written: _Written, sizes: Sizes) -> None:
    """Step by step: a Scan, whose body reads from the graph around it what is the same at every step."""
    delays = parted.loop.delays
    states = [delays[name][1] for name in stage.states]
    varying = [node for node in stage.reads if parted.classes[node] is ValueClass.VARYING and node not in states]
    body = OnnxGraph(graph.model)
    inside = {node: body.model.name(_label(node)) for node in (*states, *varying)}
    declared = [_declared(body, inside[node], node) for node in (*states, *varying)]
    scanned = [written.sequences[node] for node in varying]
    if not scanned:  # a Scan takes its length from a sequence
        number = body.model.name("step")
        declared.append(body.model.onnx.helper.make_tensor_value_info(number, element_type(torch.int64), []))
        scanned.append(step_numbers(graph, sizes))
    reads = [
        body.back(inside[node], _row_axis(node), node.meta["val"].dim()) if node in inside else written.fixed[node]
        for node in stage.reads
    ]
    step = StepWriter(body, sizes.batch, parted.loop.family, RULES)
    names = step.write(stage.graph, reads)
    nodes = [*(delays[name][0] for name in stage.states), *stage.writes]
    # an output of a body is a value of its own: no input, no value of the graph around it, none twice
    results = [
        body("Identity", body.front(name, _row_axis(node), node.meta["val"].dim()), name=f"next_{_label(node)}")
        for name, node in zip(names, nodes, strict=True)
    ]
    helper = body.model.onnx.helper
    outputs = [_declared(body, name, node) for name, node in zip(results, nodes, strict=True)]
    inner = helper.make_graph(body.nodes, body.model.name("step_of_" + parted.loop.name), declared, outputs)
    begin = [graph.front(written.fixed[node], _row_axis(node), node.meta["val"].dim()) for node in states]
    wanted = [*(f"final_{name}" for name in stage.states), *(_label(node) for node in stage.writes)]
    found = graph.several("Scan", *begin, *scanned, names=wanted, body=inner, num_scan_inputs=len(scanned))
    for name, value in zip(stage.states, found, strict=False):
        written.fixed[delays[name][0]] = graph.back(
            value, _row_axis(delays[name][0]), delays[name][0].meta["val"].dim()
        )
    written.sequences |= dict(zip(stage.writes, found[len(states) :], strict=True))


def _declared(graph: OnnxGraph, name: str, node: fx.Node) -> Any:
    """A value of a Scan's body: its type, and the axes behind the rows, which are in front."""
    value: Tensor = node.meta["val"]
    shape = ["batch", *_features(node)]
    return graph.model.onnx.helper.make_tensor_value_info(name, element_type(value.dtype), shape)


# ---- values between stages


def _label(node: fx.Node) -> str:
    return str(node.meta.get("label") or node.name)


def _row_axis(node: fx.Node) -> int:
    axis = clean_row_axis(node.meta["val"])
    assert axis is not None, f"{node} has no row axis of its own"
    return axis


def _features(node: fx.Node) -> list[int]:
    """The sizes of all axes but that of the rows."""
    own = _row_axis(node)
    return [size for axis, size in enumerate(node.meta["val"].shape) if axis != own]


def _as_rows(graph: OnnxGraph, name: str, node: fx.Node) -> str:
    """A sequence with the rows of all steps on one axis, in the place of the batch."""
    flat = graph.reshape(name, -1, *_features(node)) if 0 not in _features(node) else name
    return graph.back(flat, _row_axis(node), node.meta["val"].dim())


def _repeated(graph: OnnxGraph, name: str, node: fx.Node, sizes: Sizes) -> str:
    """What is the same at every step as a sequence."""
    front = graph.front(name, _row_axis(node), node.meta["val"].dim())
    return graph("Expand", front, graph.sizes(sizes.length, sizes.batch, *_features(node)))


def step_numbers(graph: OnnxGraph, sizes: Sizes) -> str:
    """The numbers of the steps, (length,)."""
    length = graph("Squeeze", sizes.length, name="length")
    zero, one = (graph.constant(number, torch.int64) for number in (0, 1))
    return graph("Range", zero, length, one, name="steps")


def _output(graph: OnnxGraph, parted: Split, port: Port, node: fx.Node, written: _Written) -> str:
    """The value of an output: of all steps, after the last, or the sum of all."""
    cyclic = {name for stage in parted.insides for name in stage.states}
    if port.kind == "sequence":
        return written.sequences[node]
    if port.kind == "total":
        summed = written.sequences[node]
        if port.dtype is torch.bool:
            return graph.cast(
                graph("ReduceMax", graph.cast(summed, torch.int32), graph.ints(0), keepdims=0), port.dtype
            )
        return graph("ReduceSum", summed, graph.ints(0), keepdims=0, name=port.name)
    if port.name in cyclic or node not in written.sequences:
        return written.fixed[node]
    last = graph("Gather", written.sequences[node], graph.constant(-1, torch.int64), axis=0, name=f"final_{port.name}")
    return graph.back(last, _row_axis(node), node.meta["val"].dim())
