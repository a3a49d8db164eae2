"""`Steps`: one call of a network, step by step, each step a function of vectors that can be differentiated.

The graph of the Loop is run as the engine `reference` runs it, and every state is kept. Rows never meet, so a step
can be taken on many copies of the batch at once: what is carried side by side, losses or directions, are more rows.
Knows Loops and calls; knows nothing of what is asked about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.analysis.exact import exact
from leporello.analysis.layout import Layout
from leporello.call.plan_cache import rewritten
from leporello.call.values import values_of
from leporello.errors import ArgumentError, RowsMeet
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.state import Tree
from leporello.loop.step import place_of
from leporello.nets.recurrent import Recurrent

MOST_ROWS = 2**14  # that a step is taken on at once: some ten megabytes for each value of 64 units


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of one call.

    values    in the order of the loop's inputs; sequences and draws are (length, batch, ...)
    befores   by name of a state leaf what each step finds, (length + 1, batch, ...); the last is the final state
    outputs   the loop's output sequences, (length, batch, ...)
    lengths   of the rows, where the call has any
    """

    loop: Loop
    function: Callable[..., Any]
    values: tuple[Tensor, ...]
    befores: dict[str, Tensor]
    outputs: tuple[Tensor, ...]
    length: int
    batch: int
    device: torch.device
    lengths: Tensor | None = None

    @staticmethod
    def of(net: Recurrent, inputs: Tree, state: Tree = None, **arguments: Any) -> Steps:
        """Take the steps of a call; its arguments as in a call of the net."""
        wide, call = exact(net, inputs, state, **arguments)
        with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
            loop = rewritten(wide._plan_cache.loop(wide.cell, call), wide.cell, call)
            if loop.meets is not None:
                raise RowsMeet(
                    "rows of the batch influence each other: no gradient is a row's own.",
                    cell=place_of(net.cell),
                    because=loop.meets,
                    tries="a step in which every row goes its own way",
                )
            values = tuple(value.detach() for value in values_of(loop, call))
            function = function_of(loop.graph)
            befores, outputs = _taken(loop, function, values, call.length, call.batch)
        return Steps(loop, function, values, befores, outputs, call.length, call.batch, call.device, call.lengths)

    # ---- vectors

    @cached_property
    def state_layout(self) -> Layout:
        return Layout.of((port for port in self.loop.inputs if port.kind == "state"), self.device)

    @cached_property
    def input_layout(self) -> Layout:
        return Layout.of((port for port in self.loop.inputs if _is_input(port)), self.device)

    @cached_property
    def output_layout(self) -> Layout:
        return Layout.of((port for port in self.loop.outputs if port.kind == "sequence"), self.device)

    @cached_property
    def states(self) -> Tensor:
        """What each step finds, and the final state: (length + 1, batch, numbers)."""
        leaves = [self.befores[port.name] for port in self.state_layout.ports]
        return self.state_layout.joined(leaves, self.length + 1, self.batch)

    @cached_property
    def inputs(self) -> Tensor:
        """(length, batch, numbers)."""
        pairs = zip(self.loop.inputs, self.values, strict=True)
        given = {port.name: value for port, value in pairs if port.kind == "sequence"}
        leaves = [given[port.name] for port in self.input_layout.ports]
        return self.input_layout.joined(leaves, self.length, self.batch)

    @cached_property
    def alive(self) -> Tensor:
        """Which rows have not ended, (length, batch)."""
        times = torch.arange(self.length, device=self.device).unsqueeze(1)
        ends = times.new_full((self.batch,), self.length) if self.lengths is None else self.lengths
        return times < ends

    def per_row(self, sizes: Tensor, first: int) -> Tensor:
        """The mean over the rows that have not ended, of sizes (steps, batch) at the steps from `first` on."""
        alive = self.alive[first : first + len(sizes)]
        return (sizes * alive).sum(-1) / alive.sum(-1).clamp_min(1)

    # ---- one step

    def step(
        self,
        time: int,
        state: Tensor | None = None,
        inputs: Tensor | None = None,
        invariants: Mapping[str, Tensor] | None = None,
        copies: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """The output and the next state of one step, as vectors: (copies * batch, numbers).

        state, inputs   vectors to read instead of those of the call, (copies * batch, numbers)
        invariants      values to read instead of the call's, by name
        copies          of the batch, one behind the other
        """
        others: dict[tuple[str, str], Tensor] = {("invariant", name): v for name, v in (invariants or {}).items()}
        if state is not None:
            others |= {("state", name): leaf for name, leaf in _named(self.state_layout, state).items()}
        if inputs is not None:
            others |= {("sequence", name): leaf for name, leaf in _named(self.input_layout, inputs).items()}
        read = []
        for port, value in zip(self.loop.inputs, self.values, strict=True):
            if (port.kind, port.name) in others:
                read.append(others[port.kind, port.name])
                continue
            if port.kind == "state":
                value = self.befores[port.name][time]
            elif port.kind != "invariant":
                value = value[time]
            read.append(value.repeat(copies, *[1] * (value.dim() - 1)) if port.rows and copies > 1 else value)
        rows = copies * self.batch
        made = self.function(rows, *read)
        named = {(port.kind, port.name): value for port, value in zip(self.loop.outputs, made, strict=True)}
        output = [named["sequence", port.name] for port in self.output_layout.ports]
        after = [named["state", port.name] for port in self.state_layout.ports]
        return self.output_layout.joined(output, rows), self.state_layout.joined(after, rows)

    def output_tree(self, time: int, vector: Tensor) -> Tree:
        """The output of a step as the user's cell gives it, its floating leaves taken from a vector."""
        signature = self.loop.signature
        assert signature is not None
        floating = _named(self.output_layout, vector)
        ports = [port for port in self.loop.outputs if port.kind == "sequence"]
        leaves = iter(floating.get(port.name, output[time]) for port, output in zip(ports, self.outputs, strict=True))
        return pytree.tree_unflatten(
            [next(leaves) if there else None for there in signature.present], signature.outputs
        )

    def row(self, index: int) -> Steps:
        """The same of one row."""
        one = slice(index, index + 1)
        values = []
        for port, value in zip(self.loop.inputs, self.values, strict=True):
            timed = port.kind in ("sequence", "draw")
            values.append(value[:, one] if timed else value[one] if port.rows else value)
        return replace(
            self,
            values=tuple(values),
            befores={name: value[:, one] for name, value in self.befores.items()},
            outputs=tuple(value[:, one] for value in self.outputs),
            batch=1,
            lengths=None if self.lengths is None else self.lengths[one],
        )

    def refuse_stateless(self) -> None:
        """Where no floating number is handed from step to step, no gradient goes back through them."""
        if not self.state_layout.ports:
            states = [f"{port.name}: {port}" for port in self.loop.inputs if port.kind == "state"]
            raise ArgumentError(
                "this cell hands no floating state from step to step.",
                cell=self.loop.name,
                came=", ".join(states) or "no state",
                expected="a state leaf of floating numbers",
            )

    def refuse_integers(self, side: Literal["inputs", "outputs"]) -> None:
        """Where all inputs, or all outputs, are integers, there is nothing to differentiate."""
        layout = self.input_layout if side == "inputs" else self.output_layout
        if layout.ports:
            return
        ports = self.loop.inputs if side == "inputs" else self.loop.outputs
        there = [str(port) for port in ports if _is_input(port)]
        lookup = "a cell that reads vectors: look the indices up in the embedding first"
        raise ArgumentError(
            f"the {side} of this net are no floating numbers: they have no derivative.",
            cell=self.loop.name,
            came=", ".join(there) or "none",
            expected="floating numbers",
            tries=lookup if side == "inputs" and there else None,
        )


def _is_input(port: Port) -> bool:
    return port.kind == "sequence" and not port.name.startswith("call.")


def _named(layout: Layout, vector: Tensor) -> dict[str, Tensor]:
    return {port.name: leaf for port, leaf in zip(layout.ports, layout.parted(vector), strict=True)}


def _taken(
    loop: Loop, function: Callable[..., Any], values: Sequence[Tensor], length: int, batch: int
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """The states before each step and behind the last, and the outputs."""
    present = {port.name: value for port, value in zip(loop.inputs, values, strict=True) if port.kind == "state"}
    befores = {name: [value] for name, value in present.items()}
    outputs: list[list[Tensor]] = [[] for port in loop.outputs if port.kind == "sequence"]
    for time in range(length):
        read = []
        for port, value in zip(loop.inputs, values, strict=True):
            timed = port.kind in ("sequence", "draw")
            read.append(value[time] if timed else present[port.name] if port.kind == "state" else value)
        made = list(zip(loop.outputs, function(batch, *read), strict=True))
        present = {port.name: value for port, value in made if port.kind == "state"}
        for name, value in present.items():
            befores[name].append(value)
        for column, value in zip(outputs, [v for port, v in made if port.kind == "sequence"], strict=True):
            column.append(value)
    return {name: torch.stack(column) for name, column in befores.items()}, tuple(map(torch.stack, outputs))
