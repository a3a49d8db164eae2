"""`summary`: what a network consists of and what a call of it costs, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from leporello.call.values import counted, extra_values
from leporello.errors import ArgumentError
from leporello.gradient.work import operations_of, work_of
from leporello.loop.cell import Cell
from leporello.loop.state import Tree, leaves_of
from leporello.loop.value_classes import is_view
from leporello.nets.recurrent import Recurrent
from leporello.text_table import html_table, plain_table


@dataclass(frozen=True)
class Part:
    """A module with parameters or a state of its own.

    path         within the network; "" for the network itself
    parameters   elements of its own, without those of modules inside of it
    state        its leaves with their sizes, in words; "" for a module that is no cell
    """

    path: str
    kind: str
    parameters: int
    state: str


@dataclass(frozen=True)
class LoopSummary:
    """One call of an `lp.Recurrent`.

    path              of it within the network
    inside, outside   operators that run step by step, and those that run on all steps at once or once a call
    flops_inside, flops_outside   operations of the forward pass for one step of all rows: a multiply-add is two
    flops_gradient    operations of the backward pass for one step of all rows
    state_bytes       of the state of all rows
    saved_bytes       what the forward pass saves for the backward one in the whole call, beyond inputs and outputs
    """

    path: str
    engine: str
    length: int
    batch: int
    inside: int
    outside: int
    flops_inside: float
    flops_outside: float
    flops_gradient: float
    state_bytes: int
    saved_bytes: int


@dataclass(frozen=True)
class NetSummary:
    """What `lp.summary` returns: printed, a table.

    parameters, learned   elements of all parameters, and of those that require a gradient
    parameter_bytes       of all parameters
    """

    name: str
    parts: tuple[Part, ...]
    loops: tuple[LoopSummary, ...]
    parameters: int
    learned: int
    parameter_bytes: int

    def __str__(self) -> str:
        return "\n\n".join([*(plain_table([head, *rows], left) for head, rows, left in self._tables()), self._totals()])

    def _repr_html_(self) -> str:
        return "".join(html_table(head, rows) for head, rows, _ in self._tables()) + f"<p>{self._totals()}</p>"

    def _tables(self) -> list[tuple[list[str], list[list[str]], set[int]]]:
        """The table of modules, and that of loops with a column for each; with the columns aligned to the left."""
        parts = [[part.path or self.name, part.kind, f"{part.parameters:,}", part.state] for part in self.parts]
        columns = [_column(loop) for loop in self.loops]
        loops = [[name, *(column[name] for column in columns)] for name in columns[0]]
        head = ["", *(loop.path or self.name for loop in self.loops)]
        return [(["module", "class", "parameters", "state"], parts, {0, 1, 3}), (head, loops, {0})]

    def _totals(self) -> str:
        return f"parameters: {self.parameters:,}, {self.learned:,} of them learned, {self.parameter_bytes:,} bytes"


def _column(loop: LoopSummary) -> dict[str, str]:
    return {
        "engine": loop.engine,
        "steps": f"{loop.length:,}",
        "batch": f"{loop.batch:,}",
        "operators in the loop": f"{loop.inside:,}",
        "operators outside": f"{loop.outside:,}",
        "FLOPs per step in the loop": f"{loop.flops_inside:,.0f}",
        "FLOPs per step outside": f"{loop.flops_outside:,.0f}",
        "FLOPs per step of the gradient": f"{loop.flops_gradient:,.0f}",
        "bytes of the state": f"{loop.state_bytes:,}",
        "bytes saved for the gradient": f"{loop.saved_bytes:,}",
    }


def summary(net: nn.Module, inputs: Tree = None, state: Tree = None, **arguments: Any) -> NetSummary:
    """Parameters, states, operators inside and outside the loop, operations and memory of a call.

    net                        an `lp.Recurrent`, or any module that holds some
    inputs, state, arguments   of a call; the network runs once, without gradients

    FLOPs are those of one step of all rows.

    >>> from leporello.cells import GRU
    >>> table = summary(Recurrent(GRU(3, 4)), torch.zeros(5, 2, 3))
    >>> table.parameters, table.loops[0].state_bytes
    (108, 32)
    """
    if not isinstance(net, nn.Module) or not any(isinstance(module, Recurrent) for module in net.modules()):
        raise ArgumentError(
            "the argument 'net' has no loop to summarise.",
            came=type(net).__name__,
            expected="an lp.Recurrent, or a module that holds some",
            tries="lp.summary(lp.Recurrent(cell), inputs)",
        )
    calls: list[tuple[str, Recurrent, tuple[Any, ...], dict[str, Any]]] = []

    def note(path: str) -> Any:
        return lambda module, given, options: calls.append((path, module, given, options))

    handles = [
        module.register_forward_pre_hook(note(path), with_kwargs=True)
        for path, module in net.named_modules()
        if isinstance(module, Recurrent)
    ]
    try:
        with torch.no_grad():
            net(inputs, *([] if state is None else [state]), **arguments)
    finally:
        for handle in handles:
            handle.remove()
    tensors = list(net.parameters())
    return NetSummary(
        type(net).__name__,
        tuple(_parts(net)),
        tuple(_loop_summary(path, module, given, options) for path, module, given, options in calls),
        sum(tensor.numel() for tensor in tensors),
        sum(tensor.numel() for tensor in tensors if tensor.requires_grad),
        sum(tensor.nbytes for tensor in tensors),
    )


def _parts(net: nn.Module) -> Iterable[Part]:
    for path, module in net.named_modules():
        own = sum(tensor.numel() for tensor in module.parameters(recurse=False))
        state = ""
        if isinstance(module, Cell):
            state = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in module.leaves.items())
        if own or state:
            yield Part(path, type(module).__name__, own, state)


def _operators(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and not is_view(node)]


def _loop_summary(path: str, net: Recurrent, given: tuple[Any, ...], options: dict[str, Any]) -> LoopSummary:
    """One call of a network, with its arguments; as it would run with gradients."""
    arguments = dict(zip(("inputs", "state"), given, strict=False)) | options
    arguments.pop("gradient", None)
    with torch.enable_grad():
        call = net._checked(arguments.pop("inputs", None), arguments.pop("state", None), **arguments)
        plan, choice = net._plan_cache.plan(net.cell, call, net.gradient, net.engine)
    if plan.target is None:  # the engine `reference` runs all of it step by step
        inside, outside = [_operators(plan.loop.graph)], []
    else:
        stages = plan.plain.program.split.stages
        inside = [_operators(stage.graph) for stage in stages if stage.kind == "inside" and stage.states]
        outside = [_operators(stage.graph) for stage in stages if not (stage.kind == "inside" and stage.states)]
    work = work_of(plan.loop)
    batch = counted(call.batch, plan.loop, extra_values(call, plan.loop))
    return LoopSummary(
        path,
        choice.engine,
        call.length,
        call.batch,
        sum(map(len, inside)),
        sum(map(len, outside)),
        batch * sum(operations_of(node) for nodes in inside for node in nodes),
        batch * sum(operations_of(node) for nodes in outside for node in nodes),
        batch * work.backward,
        sum(leaf.nbytes for leaf in leaves_of(call.state) if isinstance(leaf, Tensor)),
        work.saved * call.length * batch,
    )
