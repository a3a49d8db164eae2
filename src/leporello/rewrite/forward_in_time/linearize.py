"""`Linear` and `linearize`: a Loop that carries derivatives of its state forward in time, along with the state.

`Linear` says what has derivatives in a Loop: the elements of the state, and the sources, which are the inputs whose
gradients are wanted: invariants, or the initial value of a state. `linearize` traces a step that computes derivatives
(with the functions of `derivatives`) and makes it a Loop; `influence` and `rank_one` are such steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import RowsMeet, UntraceableStep
from leporello.loop.graph import placeholders, stop
from leporello.loop.loop import Loop
from leporello.loop.port import Kind, Port, PortValues, Role
from leporello.loop.tracing.graph_cleanup import label_values
from leporello.rewrite.prune import prune
from leporello.rewrite.trace_every_batch import NotForEveryBatch, trace_every_batch


@dataclass(frozen=True, eq=False)
class Linear:
    """A Loop, and for each of its inputs whether its gradient is wanted; sequences among them are ignored.

    The floating-point leaves of the state are treated as one vector of `size` elements per row. Leaves of other dtypes
    have no derivatives and are only computed, as in the Loop.
    """

    loop: Loop
    wanted: Sequence[bool]

    @cached_property
    def states(self) -> list[Port]:
        """The leaves that have derivatives."""
        return [port for port in self.loop.inputs if port.kind == "state" and port.dtype.is_floating_point]

    @cached_property
    def sources(self) -> list[Port]:
        """Invariants and states whose gradient is wanted."""
        ports = zip(self.loop.inputs, self.wanted, strict=True)
        return [port for port, wanted in ports if wanted and port.kind in ("invariant", "state")]

    @cached_property
    def influencing(self) -> list[Port]:
        """Sources on which the state depends: the others act within one step only."""
        if not self.states:
            return []
        reached = self._reached()
        return [port for port in self.sources if port.kind == "state" or port.name in reached]

    def _reached(self) -> set[str]:
        """Names of the invariants that the next state depends on, other than through `stop`."""
        names = {port.name for port in self.states}
        ports = zip(self.loop.outputs, self.loop.results, strict=True)
        pending = [node for port, node in ports if port.kind == "state" and port.name in names]
        seen: set[fx.Node] = set()
        while pending:
            node = pending.pop()
            if node not in seen and node.target is not stop:
                seen.add(node)
                pending += node.all_input_nodes
        inputs = zip(self.loop.inputs, self.loop.placeholders, strict=True)
        return {port.name for port, node in inputs if port.kind == "invariant" and node in seen}

    @property
    def gradients(self) -> list[Port]:
        """The incoming gradients of the outputs, as inputs of the new Loop."""
        return [gradient_port(p) for p in self.loop.outputs if p.kind != "state" and p.dtype.is_floating_point]

    # ---- the state as one vector

    @cached_property
    def size(self) -> int:
        """The number of elements of the vector."""
        return sum(map(numbers_per_row, self.states))

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the vector: one to which every leaf can be converted."""
        dtype = self.states[0].dtype
        for port in self.states:
            dtype = torch.promote_types(dtype, port.dtype)
        return dtype

    def place(self, port: Port) -> slice:
        """The slice of the vector that holds a leaf."""
        start = sum(numbers_per_row(other) for other in self.states[: self.states.index(port)])
        return slice(start, start + numbers_per_row(port))

    def to_vector(self, leaves: Sequence[Tensor]) -> Tensor:
        """Leaves [rows, *shape] as one vector, [rows, size]."""
        return torch.cat([flatten_from(leaf, 1).to(self.dtype) for leaf in leaves], 1)

    def to_leaves(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector [rows, size] as leaves [rows, *shape]."""
        parts = zip(vector.split([numbers_per_row(port) for port in self.states], 1), self.states, strict=True)
        return tuple(part.reshape(-1, *port.shape).to(port.dtype) for part, port in parts)


def linearize(
    linear: Linear,
    name: str,
    extra: Sequence[Port],
    step: Callable[[Any, PortValues], dict[Port, Tensor]],
    keep: Sequence[Port],
) -> Loop:
    """Trace a step as a Loop that runs forward in time.

    Its inputs are those of `linear.loop`, the gradients `grad.o` of its outputs, and `extra`.

    name    what the Loop computes, the first part of its name
    extra   further inputs: what is carried as states, and draws
    step    from the number of rows and the values of one step's inputs, by key, to its outputs, by port
    keep    states whose last value is wanted
    """
    inputs = [*linear.loop.inputs, *linear.gradients, *extra]
    _refuse(linear.loop, inputs)
    outputs: list[Port] = []

    def function(rows: Any, values: list[Tensor]) -> list[Tensor]:
        results = step(rows, {port.key: value for port, value in zip(inputs, values, strict=True)})
        outputs[:] = results
        return list(results.values())

    try:
        graph, constants = trace_every_batch(function, inputs, linear.loop.family)
    except NotForEveryBatch as error:
        raise UntraceableStep(
            "this step has an operator whose derivatives cannot be carried forward in time.",
            loop=linear.loop.name,
            because=str(error),
            tries="gradient=lp.Full(), which goes back in time",
        ) from error
    inputs += [Port("invariant", n, tuple(c.shape), c.dtype, c.device, rows=False) for n, c in constants.items()]
    label_values(graph, inputs, placeholders(graph)[1:], {})
    loop = linear.loop.replace(
        name=f"{name} of {linear.loop.name}",
        graph=graph,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        reverse=False,
        constants={**linear.loop.constants, **constants},
        batch_interaction=None,
        last_step_outputs=(),
        signature=None,
    )
    return prune(loop, [port.name for port in keep])


def _refuse(loop: Loop, inputs: Sequence[Port]) -> None:
    if loop.batch_interaction is not None:
        raise RowsMeet(
            "rows of the batch influence each other in this step: no row has a derivative of its own to carry.",
            because=loop.batch_interaction,
            tries="compute over features only; or gradient=lp.Full()",
        )
    complex_port = next((port for port in (*loop.inputs, *loop.outputs) if port.dtype.is_complex), None)
    if complex_port is not None:
        raise UntraceableStep(
            f"the derivatives of complex values are not carried forward in time: '{complex_port.name}'.",
            came=str(complex_port),
            tries="gradient=lp.Full(); or real and imaginary parts side by side",
        )
    keys = [port.key for port in inputs]
    twice = next((name for kind, name in keys if keys.count((kind, name)) > 1), None)
    if twice is not None:
        raise UntraceableStep(f"an input has a name that is taken: '{twice}'.", tries="give it another name")


def numbers_per_row(port: Port) -> int:
    return math.prod(port.shape)


def flatten_from(value: Tensor, axis: int) -> Tensor:
    """The value with its axes from this one on flattened into one; of size 1 where there are none."""
    return value.flatten(axis) if value.dim() > axis else value.unsqueeze(-1)


def gradient_port(port: Port) -> Port:
    """The incoming gradient of an output: a sequence for a sequence, an invariant for a total."""
    kind: Kind = "sequence" if port.kind == "sequence" else "invariant"
    return replace(port, kind=kind, name=f"grad.{port.name}", role=Role.GRADIENT, of=port)


def total_port(port: Port) -> Port:
    """The total that is a source's gradient, named like the invariant; for a state by a name that no parameter has."""
    name = port.name if port.kind == "invariant" else f"the state {port.name}"
    return replace(port, kind="total", name=name, role=Role.TOTAL, of=port)


def total_outputs(linear: Linear, gradients: PortValues) -> dict[Port, Tensor]:
    """The gradients of one step, by the keys of their sources, as outputs of the new Loop; other sources have none."""
    return {total_port(port): gradients[port.key] for port in linear.sources if port.key in gradients}
