"""The rewrite `differentiate`: a Loop becomes the Loop of its gradients, with time reversed.

The vector-Jacobian product of the Loop's own graph is traced by torch's autograd; the state's gradient is the new
state, gradients of invariants are totals. The result reads the forward inputs and the state before each step, and
recomputes the forward values it needs; `save` then decides which of them are saved instead. Applied twice it gives the
second derivative.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.loop.graph import copied, placeholders, results, traceable
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import kept
from leporello.loop.port import Kind, Port, Role
from leporello.loop.tracing.graph_cleanup import WithoutAssertions, label_values, tidy

aten = torch.ops.aten


def differentiate(
    loop: Loop, wanted: Sequence[bool] | None = None, given: Sequence[bool] | None = None, *, again: bool = False
) -> Loop:
    """The backward Loop.

    wanted   for each input of the loop whether its gradient is wanted (by default all floating ones but draws)
    given    for each output whether it has an incoming gradient (all floating ones by default)
    again    whether the result is to be differentiated in turn: a few operators have a fast gradient that has no
             derivatives itself, and a slower one that has

    Its inputs: `input.x` for a sequence x, `draw.d` for a draw, `before.h` for the state h before each step, invariants
    as they are, `grad.o` for the gradient of an output o; as states the gradients of the states. Its outputs: for each
    wanted input its gradient under its own name, a total for an invariant, left out where no output depends on it; the
    gradient of every floating state, wanted or not, zeros where nothing depends on it.
    """
    wanted = _differentiable(loop.inputs) if wanted is None else list(wanted)
    given = _differentiable(loop.outputs) if given is None else list(given)
    carried = [port.kind == "state" and port.is_floating for port in loop.inputs]
    needed = [w or c for w, c in zip(wanted, carried, strict=True)]
    reads = [_forward_port(port) for port in loop.inputs]
    gradients = [
        _gradient_port(port) for port, present in zip(loop.outputs, given, strict=True) if present and port.is_floating
    ]
    incoming = [present and port.is_floating for port, present in zip(loop.outputs, given, strict=True)]
    module, has_gradient = _trace_vjp(loop, needed, incoming, [*reads, *gradients], again)
    return _backward_loop(loop, module, has_gradient, needed, (*reads, *gradients))


def _differentiable(ports: Sequence[Port]) -> list[bool]:
    return [port.is_floating and not port.is_drawn for port in ports]


_FORWARD_ROLES: dict[
    str, tuple[Role, str]
] = {  # by kind of a forward input: its role in the backward Loop, name prefix
    "sequence": (Role.FORWARD_INPUT, "input."),
    "draw": (Role.FORWARD_DRAW, "draw."),
    "state": (Role.STATE_BEFORE, "before."),
}


def _forward_port(port: Port) -> Port:
    """A forward input as the backward Loop reads it: states as the sequence of the states before each step."""
    if port.kind == "invariant":
        return port
    role, prefix = _FORWARD_ROLES[port.kind]
    return replace(port, kind="sequence", name=prefix + port.name, distribution=None, role=role, of=port)


def _gradient_port(port: Port) -> Port:
    """The incoming gradient of an output: a state for a state, a sequence for a sequence, an invariant for a total."""
    if port.kind == "state":
        return port
    kind: Kind = "sequence" if port.kind == "sequence" else "invariant"
    return replace(port, kind=kind, name=f"grad.{port.name}", role=Role.GRADIENT, of=port)


def _trace_vjp(
    loop: Loop, needed: list[bool], incoming: list[bool], ports: list[Port], again: bool
) -> tuple[fx.GraphModule, list[bool]]:
    """The graph of the vector-Jacobian product, and for each needed input whether any output depends on it.

    needed     for each input whether the product has a gradient of it
    incoming   for each output whether a gradient of it comes in
    ports      what the product reads: the forward values, then the incoming gradients
    """
    family = loop.family
    has_gradient: list[bool] = []
    forward = traceable(loop.graph, family)

    def product(rows: Any, values: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        leaves = [
            value.detach().requires_grad_() if wanted else value for value, wanted in zip(values, needed, strict=True)
        ]
        with torch.enable_grad(), WithoutAssertions():
            outputs = forward(rows, *leaves)
        remaining = iter(gradients)
        pairs = [(output, next(remaining)) for output, present in zip(outputs, incoming, strict=True) if present]
        pairs = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        sources = [leaf for leaf, wanted in zip(leaves, needed, strict=True) if wanted]
        products: Sequence[Tensor | None] = [None] * len(sources)
        if pairs and sources:
            differentiable, weights = zip(*pairs, strict=True)
            with WithoutAssertions():
                products = torch.autograd.grad(differentiable, sources, weights, allow_unused=True, create_graph=again)
        has_gradient[:] = [product is not None for product in products]
        return [product for product in products if product is not None]

    values = [family.tensor(port.shape, port.dtype, port.device, rows=port.rows) for port in ports]
    with refusals(loop), kept() if again else nullcontext():
        module = family.graph_of(product, family.rows, values[: len(loop.inputs)], values[len(loop.inputs) :])
    return module, has_gradient


@contextmanager
def refusals(loop: Loop) -> Iterator[None]:
    """Refuse a gradient that torch does not define, or that is traced for one number of rows only.

    The guard of the latter would hold for the Loop itself too.
    """
    try:
        with loop.family.no_new_guards():
            yield
    except RuntimeError as error:
        undefined = re.match(r"derivative for aten::(\w+) is not implemented", str(error))
        if undefined is not None:
            raise _no_derivative(loop, undefined[1]) from error
        if "guards are frozen" not in str(error):
            raise
        raise EngineRefusal(
            "the gradient of this step can be traced for one number of rows only.",
            loop=loop.name,
            because=str(error).splitlines()[0],
            tries='engine="reference"',
        ) from error


def _no_derivative(loop: Loop, name: str) -> EngineRefusal:
    lines = [node.meta.get("line") for node in loop.nodes if getattr(node.target, "__name__", "").startswith(name)]
    return EngineRefusal(
        f"torch has no derivative of {name}.",
        line=next(filter(None, lines), None),
        tries=f"{name} of a detached value, an autograd.Function with a backward of its own, or lp.surrogate",
    )


def _backward_loop(
    loop: Loop, module: fx.GraphModule, has_gradient: list[bool], needed: list[bool], reads: tuple[Port, ...]
) -> Loop:
    """The Loop of a traced vector-Jacobian product.

    has_gradient, needed   as of `_trace_vjp`
    reads                  the ports that the product reads: forward values, then incoming gradients
    """
    graph, _ = copied(module.graph)
    for node in list(graph.nodes):
        if node.target is aten.detach.default:  # added by autograd, without effect here
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    constants = {free_name(name, loop.constants): value for name, value in tidy(graph, module, loop.family).items()}
    products = iter(results(graph))
    remaining = iter(has_gradient)
    outputs: list[tuple[Port, fx.Node]] = []
    for port, wanted in zip(loop.inputs, needed, strict=True):
        if wanted and next(remaining):
            outputs.append((_result_port(port), next(products)))
        elif port.kind == "state" and wanted:
            outputs.append((_result_port(port), _zeros(graph, loop, port)))
    constant_ports = [
        Port("invariant", name, tuple(value.shape), value.dtype, value.device, rows=False)
        for name, value in constants.items()
    ]
    inputs = (*reads, *constant_ports)
    states = {port.name for port in reads if port.kind == "state"}
    outputs = [(port, node) for port, node in outputs if port.kind != "state" or port.name in states]
    graph.erase_node(graph.output_node())
    graph.output(tuple(node for _, node in outputs))
    graph.eliminate_dead_code()
    label_values(graph, inputs, placeholders(graph)[1:], {})
    return loop.replace(
        name=f"gradient of {loop.name}",
        graph=graph,
        inputs=inputs,
        outputs=tuple(port for port, _ in outputs),
        reverse=not loop.reverse,
        constants={**loop.constants, **constants},
        last_step_outputs=(),
        signature=None,
    )


def free_name(name: str, taken: Container[str]) -> str:
    """A name for a constant of the gradient that no constant of the Loop has."""
    while name in taken:
        name = f"backward.{name}"
    return name


def _result_port(port: Port) -> Port:
    """The gradient of an input, under the input's name: a total for an invariant."""
    kind: Kind = "total" if port.kind == "invariant" else port.kind
    role = {"total": Role.TOTAL, "sequence": Role.OUTPUT}.get(kind, port.role)
    return replace(port, kind=kind, role=role, of=port)


def _zeros(graph: fx.Graph, loop: Loop, port: Port) -> fx.Node:
    """Add the gradient of a state on which nothing depends to the graph: zeros."""
    rows = next(iter(graph.nodes))
    with graph.inserting_before(graph.output_node()):
        node = graph.call_function(
            aten.full.default, ([rows, *port.shape], 0), {"dtype": port.dtype, "device": port.device}
        )
    node.meta["val"] = loop.family.tensor(port.shape, port.dtype, port.device, rows=True)
    return node
