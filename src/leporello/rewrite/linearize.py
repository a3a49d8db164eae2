"""`Linear` and `linearize`: a Loop that carries derivatives of its state forward in time, beside the state.

`Linear` says what has derivatives in a Loop: the numbers of the state, and the sources, which are the inputs whose
gradients are wanted: invariants, or the initial value of a state. `linearize` makes the Loop of a function that a
rewrite wrote with `derivatives`. Knows ports; knows nothing of what is carried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import RowsMeet, UntraceableStep
from leporello.loop.graph import placeholders, stop
from leporello.loop.graph_cleanup import label_values
from leporello.loop.loop import Loop
from leporello.loop.port import Kind, Port, Role
from leporello.rewrite.prune import prune
from leporello.rewrite.trace_every_batch import NotForEveryBatch, every_batch

Key = tuple[str, str]  # kind and name of a port
Values = Mapping[Key, Tensor]


@dataclass(frozen=True, eq=False)
class Linear:
    """A loop, and for each of its inputs whether its gradient is wanted; sequences among them are not looked at.

    The leaves of a state that are real numbers stand side by side in one vector of `size` numbers per row; leaves of
    other kinds only move along.
    """

    loop: Loop
    wanted: Sequence[bool]

    @cached_property
    def states(self) -> list[Port]:
        """The leaves that have derivatives."""
        return [port for port in self.loop.inputs if port.kind == "state" and port.dtype.is_floating_point]

    @cached_property
    def sources(self) -> list[Port]:
        asked = zip(self.loop.inputs, self.wanted, strict=True)
        return [port for port, wanted in asked if wanted and port.kind in ("invariant", "state")]

    @cached_property
    def influencing(self) -> list[Port]:
        """Sources on which the state depends: the others act within one step only."""
        if not self.states:
            return []
        reached = self._reached()
        return [port for port in self.sources if port.kind == "state" or port.name in reached]

    def _reached(self) -> set[str]:
        """Invariants that lie on a way to the next state."""
        names = {port.name for port in self.states}
        ports = zip(self.loop.outputs, self.loop.results, strict=True)
        waiting = [node for port, node in ports if port.kind == "state" and port.name in names]
        seen: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node not in seen and node.target is not stop:
                seen.add(node)
                waiting += node.all_input_nodes
        inputs = zip(self.loop.inputs, self.loop.placeholders, strict=True)
        return {port.name for port, node in inputs if port.kind == "invariant" and node in seen}

    @property
    def gradients(self) -> list[Port]:
        """What arrives at the outputs."""
        return [arriving(p) for p in self.loop.outputs if p.kind != "state" and p.dtype.is_floating_point]

    # ---- the state as one vector

    @cached_property
    def size(self) -> int:
        return sum(map(count, self.states))

    @cached_property
    def dtype(self) -> torch.dtype:
        """One that holds every leaf."""
        found = self.states[0].dtype
        for port in self.states:
            found = torch.promote_types(found, port.dtype)
        return found

    def place(self, port: Port) -> slice:
        """Where a leaf stands in the vector."""
        start = sum(count(other) for other in self.states[: self.states.index(port)])
        return slice(start, start + count(port))

    def joined(self, leaves: Sequence[Tensor]) -> Tensor:
        """Leaves [rows, *shape] as one vector, [rows, size]."""
        return torch.cat([flat(leaf, 1).to(self.dtype) for leaf in leaves], 1)

    def apart(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector [rows, size] as leaves."""
        parts = zip(vector.split([count(port) for port in self.states], 1), self.states, strict=True)
        return tuple(part.reshape(-1, *port.shape).to(port.dtype) for part, port in parts)


def linearize(
    linear: Linear,
    name: str,
    extra: Sequence[Port],
    step: Callable[[Any, Values], dict[Port, Tensor]],
    keep: Sequence[Port],
) -> Loop:
    """The loop whose inputs are those of the linear one, the gradients `grad.o` of its outputs and `extra`.

    step   from the number of rows and the values of one step to its outputs
    keep   states whose last value is wanted
    """
    inputs = [*linear.loop.inputs, *linear.gradients, *extra]
    _refuse(linear.loop, inputs)
    outputs: list[Port] = []

    def function(rows: Any, values: list[Tensor]) -> list[Tensor]:
        made = step(rows, {key(port): value for port, value in zip(inputs, values, strict=True)})
        outputs[:] = made
        return list(made.values())

    try:
        graph, constants = every_batch(function, inputs, linear.loop.family)
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
    odd = next((port for port in (*loop.inputs, *loop.outputs) if port.dtype.is_complex), None)
    if odd is not None:
        raise UntraceableStep(
            f"the derivatives of complex values are not carried forward in time: '{odd.name}'.",
            came=str(odd),
            tries="gradient=lp.Full(); or real and imaginary parts side by side",
        )
    keys = list(map(key, inputs))
    twice = next((name for kind, name in keys if keys.count((kind, name)) > 1), None)
    if twice is not None:
        raise UntraceableStep(f"an input has a name that is taken: '{twice}'.", tries="give it another name")


def key(port: Port) -> Key:
    return port.kind, port.name


def count(port: Port) -> int:
    """Numbers in one row."""
    return math.prod(port.shape)


def flat(value: Tensor, axes: int) -> Tensor:
    """The axes behind the first ones as one, which is there even where they are none."""
    return value.flatten(axes) if value.dim() > axes else value.unsqueeze(-1)


def arriving(port: Port) -> Port:
    """The gradient of an output: a sequence for a sequence, an invariant for a total."""
    kind: Kind = "sequence" if port.kind == "sequence" else "invariant"
    return replace(port, kind=kind, name=f"grad.{port.name}", role=Role.GRADIENT, of=port)


def total(port: Port) -> Port:
    """The gradient of a source: an invariant's under its name, a state's under a name that no parameter has."""
    name = port.name if port.kind == "invariant" else f"the state {port.name}"
    return replace(port, kind="total", name=name, role=Role.TOTAL, of=port)


def totals(linear: Linear, gradients: Mapping[Key, Tensor]) -> dict[Port, Tensor]:
    """The gradients of the sources that have one, as outputs."""
    return {total(port): gradients[key(port)] for port in linear.sources if key(port) in gradients}
