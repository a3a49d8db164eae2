"""`Loop`: the graph of one step, whose states pass through delays. What everything else rewrites, views or runs.

A plain record. `split`, `unfold` and `text_of` are functions of it; `view.folded_loop.FoldedLoop` is the Loop that
users get, with these and the pictures as methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor, fx, nn

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import placeholders, results
from leporello.loop.port import Port, as_inputs, as_outputs


@dataclass(frozen=True)
class Signature:
    """How the user's trees map to ports: the structures of input, state and output, and where invariants live."""

    inputs: Any  # pytree specs
    state: Any
    outputs: Any
    present: tuple[bool, ...] = ()  # which leaves of the output are not None
    home: nn.Module | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Loop:
    """The graph of one step with its delays.

    graph      an fx.Graph of ATen operators: the placeholder `rows`, one placeholder per input, one result per output
    inputs     sequences, invariants, draws and states, in the order of the placeholders
    outputs    sequences, states and totals, in the order of the results; states pair with input states by name
    reverse    whether time runs backwards
    constants  values of invariants that belong to the step itself
    meets      why rows of the batch influence each other, None if they do not
    ended      outputs that are asked for at the last step only, as a summary's are
    """

    name: str
    graph: fx.Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    family: FakeTensorFamily
    reverse: bool = False
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    meets: str | None = None
    ended: tuple[str, ...] = ()
    signature: Signature | None = None

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
    def decides_by_rows(self) -> bool:
        """Whether it was traced for one number of rows only."""
        return self.meets is not None and self.family.decided()

    @property
    def parameters(self) -> dict[str, Tensor | None]:
        """The invariants by name, with their present values where the loop knows its module."""
        return {port.name: self.invariant(port.name) for port in self.inputs if port.kind == "invariant"}

    @property
    def delays(self) -> dict[str, tuple[fx.Node, fx.Node]]:
        """For each state leaf the value that enters its delay and the one that leaves it, a step later."""
        into = {port.name: node for port, node in zip(self.outputs, self.results, strict=True) if port.kind == "state"}
        out = {
            port.name: node for port, node in zip(self.inputs, self.placeholders, strict=True) if port.kind == "state"
        }
        return {name: (into[name], node) for name, node in out.items()}

    def invariant(self, name: str) -> Tensor | None:
        """The present value of an invariant: a constant, or a parameter or buffer of the module."""
        if name in self.constants:
            return self.constants[name]
        if self.signature is None or self.signature.home is None:
            return None
        home: object = self.signature.home
        for part in name.split("."):
            home = getattr(home, part, None)  # None for what a call adds, such as the initial state
        return home if isinstance(home, Tensor) else None

    def __repr__(self) -> str:
        states = ", ".join(self.delays) or "none"
        return f"<Loop of {self.name}: {len(self.nodes)} operators, states: {states}>"

    def replace(self, **changes: Any) -> Self:
        """A copy with other fields, of the same class."""
        return replace(self, **changes)
