"""`Loop`: the graph of one step, whose states pass through delays. Everything else rewrites, views or runs it.

A plain record. `split`, `unfold` and `text_of` are functions of it; `view.folded_loop.FoldedLoop` is the Loop that
users get, with these and the pictures as methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import placeholders, results
from leporello.loop.port import Port, as_inputs, as_outputs


@dataclass(frozen=True)
class Signature:
    """How the user's trees map to ports, and which module holds the parameters.

    inputs, state, outputs   pytree specs
    present                  which leaves of the output are tensors; the others are None
    module                   the cell, whose parameters and buffers are the invariants
    found                    by name, how to read an invariant that is no parameter or buffer of the cell
    """

    inputs: Any
    state: Any
    outputs: Any
    present: tuple[bool, ...] = ()
    module: nn.Module | None = None
    found: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Loop:
    """The graph of one step with its delays.

    graph               an fx.Graph of ATen operators: the placeholder `rows`, one placeholder per input, one result per
                        output
    inputs              sequences, invariants, draws and states, in the order of the placeholders
    outputs             sequences, states and totals, in the order of the results; states pair with input states by name
    family              the fake tensors in the graph's `meta["val"]`, with the symbol for the number of rows
    reverse             whether time runs backwards
    constants           values of invariants that belong to the step itself
    batch_interaction   why rows of the batch influence each other, in a sentence; None if they do not
    last_step_outputs   names of outputs that are computed at the last step only, such as those of a summary
    signature           None for a Loop that no user calls, such as that of a gradient
    free_lengths        for each free length an input and an axis of its value that has it
    """

    name: str
    graph: fx.Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    family: FakeTensorFamily
    reverse: bool = False
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    batch_interaction: str | None = None
    last_step_outputs: tuple[str, ...] = ()
    signature: Signature | None = None
    free_lengths: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", as_inputs(self.inputs))
        object.__setattr__(self, "outputs", as_outputs(self.outputs))

    @property
    def placeholders(self) -> list[fx.Node]:
        """One per input, without the number of rows."""
        return placeholders(self.graph)[1:]

    @property
    def results(self) -> list[fx.Node]:
        """One per output."""
        return results(self.graph)

    @property
    def nodes(self) -> list[fx.Node]:
        """The operators of one step, in an order in which they can run."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def traced_for_one_batch(self) -> bool:
        """Whether the step depends on the number of rows, so that the graph is right for one number only."""
        return self.batch_interaction is not None and self.family.batch_is_concrete()

    @property
    def written(self) -> dict[str, fx.Node]:
        """The buffers that the step writes to, by name, with the operator that does it."""
        writes = {node.args[0]: node for node in self.nodes if node.target is torch.ops.aten.copy_.default}
        inputs = zip(self.inputs, self.placeholders, strict=True) if writes else ()
        return {port.name: writes[node] for port, node in inputs if node in writes}

    @property
    def parameters(self) -> dict[str, Tensor | None]:
        """The invariants by name, with their present values; None for one that has no value here."""
        return {port.name: self.invariant(port.name) for port in self.inputs if port.kind == "invariant"}

    @property
    def delays(self) -> dict[str, tuple[fx.Node, fx.Node]]:
        """For each state leaf the value that enters its delay and the one that leaves it, a step later."""
        into = {port.name: node for port, node in zip(self.outputs, self.results, strict=True) if port.kind == "state"}
        out = {
            port.name: node for port, node in zip(self.inputs, self.placeholders, strict=True) if port.kind == "state"
        }
        return {name: (into[name], node) for name, node in out.items()}

    @property
    def found(self) -> dict[str, Callable[[], Any]]:
        """How to read each invariant that is no parameter or buffer of the cell, by name."""
        found = self.signature.found if self.signature is not None else {}
        return {port.name: found[port.name] for port in self.inputs if port.kind == "invariant" and port.name in found}

    def found_as_traced(self) -> bool:
        """Whether those invariants still have the shapes, dtypes and devices of the trace."""
        forms = {port.name: (port.shape, port.dtype, port.device) for port in self.inputs if port.kind == "invariant"}
        values = {name: read() for name, read in self.found.items()}
        return all(
            value is not None and (tuple(value.shape), value.dtype, value.device) == forms[name]
            for name, value in values.items()
        )

    def invariant(self, name: str) -> Tensor | None:
        """The present value of an invariant: a constant, a parameter or buffer of the module, or one found elsewhere.

        None for what a call adds, such as the initial state, and for a Loop without a module.
        """
        if name in self.constants:
            return self.constants[name]
        if self.signature is None or self.signature.module is None:
            return None
        if name in self.signature.found:
            value: object = self.signature.found[name]()
        else:
            value = self.signature.module
            for attribute in name.split("."):
                value = getattr(value, attribute, None)
        return value if isinstance(value, Tensor) else None

    def __repr__(self) -> str:
        states = ", ".join(self.delays) or "none"
        return f"<Loop of {self.name}: {len(self.nodes)} operators, states: {states}>"

    def replace(self, **changes: Any) -> Self:
        """A copy of the same class with other values in some fields."""
        return replace(self, **changes)
