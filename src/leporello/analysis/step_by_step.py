"""`StepByStepRun`: one call of a network in float64, step by step, each step a differentiable function of vectors.

The graph of the Loop runs as the engine `reference` runs it, and every state is kept. There is no interaction across
the batch, so a step can run on many copies of the batch at once: losses or directions to carry along are more rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.analysis.arguments import call_in_float64
from leporello.call.plan_cache import PlanCache, rewritten
from leporello.call.values import values_of
from leporello.errors import ArgumentError, RowsMeet
from leporello.loop.draws import noise_at_mean
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.state import Tree
from leporello.loop.step import place_of
from leporello.nets.recurrent import Recurrent

MAX_ROWS_AT_ONCE = 2**14  # of one evaluation of a step: some ten megabytes for each value of 64 units


@dataclass(frozen=True)
class VectorLayout:
    """Where the floating leaves of a state, an input or an output are in one vector of real numbers per row.

    Integers have no derivative and are left out; a complex number takes two real ones.
    """

    ports: tuple[Port, ...]
    device: torch.device

    @staticmethod
    def of(ports: Iterable[Port], device: torch.device) -> VectorLayout:
        """The layout of those ports that have a derivative."""
        floating = (port for port in ports if port.dtype.is_floating_point or port.dtype.is_complex)
        return VectorLayout(tuple(floating), device)

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(map(_real_numbers, self.ports))

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of the vector that each leaf has, by name."""
        slices, start = {}, 0
        for port in self.ports:
            slices[port.name] = slice(start, start + _real_numbers(port))
            start += _real_numbers(port)
        return slices

    def join(self, leaves: Sequence[Tensor], *axes: int) -> Tensor:
        """From leaves (*axes, *shape), in the order of the ports, to (*axes, size)."""
        if not leaves:
            return torch.zeros(*axes, 0, dtype=torch.float64, device=self.device)
        parts = []
        for leaf, port in zip(leaves, self.ports, strict=True):
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            parts.append(real.reshape(*axes, _real_numbers(port)))
        return torch.cat(parts, -1)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """From (rows, size) back to leaves (rows, *shape), by name."""
        leaves = {}
        for port, place in zip(self.ports, self.slices.values(), strict=True):
            part = vector[:, place]
            if port.dtype.is_complex:
                part = torch.view_as_complex(part.reshape(-1, *port.shape, 2))
            leaves[port.name] = part.reshape(-1, *port.shape)
        return leaves


def _real_numbers(port: Port) -> int:
    return math.prod(port.shape) * (2 if port.dtype.is_complex else 1)


@dataclass(frozen=True, eq=False)
class StepByStepRun:
    """The steps of one call.

    function        evaluates the loop's graph for one step
    values          in the order of the loop's inputs; sequences and draws are (length, batch, ...), draws
                    that rows share (length, ...)
    states_before   by name of a state leaf, (length + 1, batch, ...): before each step; the last is the final state
    outputs         the loop's output sequences, (length, batch, ...)
    lengths         of the rows; None where all have the full length
    has_mean_noise  whether random operators give their mean, and are no inputs
    """

    loop: Loop
    function: Callable[..., Any]
    values: tuple[Tensor, ...]
    states_before: dict[str, Tensor]
    outputs: tuple[Tensor, ...]
    length: int
    batch: int
    device: torch.device
    lengths: Tensor | None = None
    has_mean_noise: bool = False

    @staticmethod
    def of(
        net: Recurrent, inputs: Tree, state: Tree = None, *, mean_noise: bool = False, **arguments: Any
    ) -> StepByStepRun:
        """Run the steps of a call, with the arguments of a call of the net.

        mean_noise   random operators of the step give their mean; `has_mean_noise` says whether there are any
        """
        float64_net, call = call_in_float64(net, inputs, state, **arguments)
        with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
            loops = PlanCache() if mean_noise else float64_net._plan_cache
            noise: AbstractContextManager[list[Any]] = noise_at_mean() if mean_noise else nullcontext([])
            with noise as means:
                loop = rewritten(loops.loop(float64_net.cell, call), float64_net.cell, call)
            if loop.batch_interaction is not None:
                raise RowsMeet(
                    "rows of the batch influence each other: no gradient is a row's own.",
                    cell=place_of(net.cell),
                    because=loop.batch_interaction,
                    tries="a step in which every row goes its own way",
                )
            values = tuple(value.detach() for value in values_of(loop, call))
            function = function_of(loop.graph)
            states, outputs = _run_steps(loop, function, values, call.length, call.batch)
        return StepByStepRun(
            loop,
            function,
            values,
            states,
            outputs,
            call.length,
            call.batch,
            call.device,
            call.lengths,
            has_mean_noise=bool(means),
        )

    # ---- states, inputs and outputs as vectors

    @cached_property
    def state_layout(self) -> VectorLayout:
        return VectorLayout.of((port for port in self.loop.inputs if port.kind == "state"), self.device)

    @cached_property
    def input_layout(self) -> VectorLayout:
        return VectorLayout.of((port for port in self.loop.inputs if _is_input(port)), self.device)

    @cached_property
    def output_layout(self) -> VectorLayout:
        return VectorLayout.of((port for port in self.loop.outputs if port.kind == "sequence"), self.device)

    @cached_property
    def states(self) -> Tensor:
        """The state before each step, and the final one, as vectors: (length + 1, batch, size of the state layout)."""
        leaves = [self.states_before[port.name] for port in self.state_layout.ports]
        return self.state_layout.join(leaves, self.length + 1, self.batch)

    @cached_property
    def inputs(self) -> Tensor:
        """The inputs of each step, as vectors: (length, batch, size of the input layout)."""
        pairs = zip(self.loop.inputs, self.values, strict=True)
        sequences = {port.name: value for port, value in pairs if port.kind == "sequence"}
        leaves = [sequences[port.name] for port in self.input_layout.ports]
        return self.input_layout.join(leaves, self.length, self.batch)

    def output_tree(self, time: int, vector: Tensor) -> Tree:
        """The output of a step as the user's cell returns it, with floating leaves taken from a vector."""
        signature = self.loop.signature
        assert signature is not None
        floating = self.output_layout.split(vector)
        ports = [port for port in self.loop.outputs if port.kind == "sequence"]
        leaves = iter(floating.get(port.name, output[time]) for port, output in zip(ports, self.outputs, strict=True))
        return pytree.tree_unflatten(
            [next(leaves) if present else None for present in signature.present], signature.outputs
        )

    # ---- rows

    @cached_property
    def alive(self) -> Tensor:
        """Which rows have not ended, (length, batch)."""
        times = torch.arange(self.length, device=self.device).unsqueeze(1)
        ends = times.new_full((self.batch,), self.length) if self.lengths is None else self.lengths
        return times < ends

    def mean_over_rows(self, sizes: Tensor, first: int) -> Tensor:
        """The mean over rows that have not ended, of sizes (steps, batch) at the steps from `first` on."""
        alive = self.alive[first : first + len(sizes)]
        return (sizes * alive).sum(-1) / alive.sum(-1).clamp_min(1)

    def row(self, index: int) -> StepByStepRun:
        """The run of one row of the batch."""
        one = slice(index, index + 1)
        values = []
        for port, value in zip(self.loop.inputs, self.values, strict=True):
            values.append((value[:, one] if _has_time(port) else value[one]) if port.rows else value)
        return replace(
            self,
            values=tuple(values),
            states_before={name: value[:, one] for name, value in self.states_before.items()},
            outputs=tuple(value[:, one] for value in self.outputs),
            batch=1,
            lengths=None if self.lengths is None else self.lengths[one],
        )

    # ---- one step

    def step(
        self,
        time: int,
        state: Tensor | None = None,
        inputs: Tensor | None = None,
        invariants: Mapping[str, Tensor] | None = None,
        copies: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """The output and the next state of one step, as vectors: (copies * batch, size of the layout).

        state, inputs   vectors to read instead of those of the call, (copies * batch, size of the layout)
        invariants      values to read instead of the call's, by name
        copies          of the batch, one behind the other
        """
        replaced: dict[tuple[str, str], Tensor] = {("invariant", name): v for name, v in (invariants or {}).items()}
        if state is not None:
            replaced |= {("state", name): leaf for name, leaf in self.state_layout.split(state).items()}
        if inputs is not None:
            replaced |= {("sequence", name): leaf for name, leaf in self.input_layout.split(inputs).items()}
        arguments = []
        for port, value in zip(self.loop.inputs, self.values, strict=True):
            if (port.kind, port.name) in replaced:
                arguments.append(replaced[port.kind, port.name])
                continue
            if port.kind == "state":
                value = self.states_before[port.name][time]
            elif port.kind != "invariant":
                value = value[time]
            arguments.append(value.repeat(copies, *[1] * (value.dim() - 1)) if port.rows and copies > 1 else value)
        rows = copies * self.batch
        results = zip(self.loop.outputs, self.function(rows, *arguments), strict=True)
        by_name = {(port.kind, port.name): value for port, value in results}
        output = [by_name["sequence", port.name] for port in self.output_layout.ports]
        after = [by_name["state", port.name] for port in self.state_layout.ports]
        return self.output_layout.join(output, rows), self.state_layout.join(after, rows)

    # ---- checks

    def check_floating_state(self) -> None:
        """Raise where no floating number is passed from step to step: no gradient goes back through such steps."""
        if not self.state_layout.ports:
            states = [f"{port.name}: {port}" for port in self.loop.inputs if port.kind == "state"]
            raise ArgumentError(
                "this cell hands no floating state from step to step.",
                cell=self.loop.name,
                came=", ".join(states) or "no state",
                expected="a state leaf of floating numbers",
            )

    def check_floating(self, side: Literal["inputs", "outputs"]) -> None:
        """Raise where all inputs, or all outputs, are integers: there is nothing to differentiate."""
        layout = self.input_layout if side == "inputs" else self.output_layout
        if layout.ports:
            return
        ports = self.loop.inputs if side == "inputs" else self.loop.outputs
        integers = [str(port) for port in ports if _is_input(port)]
        lookup = "a cell that reads vectors: look the indices up in the embedding first"
        raise ArgumentError(
            f"the {side} of this net are no floating numbers: they have no derivative.",
            cell=self.loop.name,
            came=", ".join(integers) or "none",
            expected="floating numbers",
            tries=lookup if side == "inputs" and integers else None,
        )


def _is_input(port: Port) -> bool:
    """Whether a port is a sequence of the user's, and not one that the call adds, such as resets."""
    return port.kind == "sequence" and not port.is_added


def _has_time(port: Port) -> bool:
    return port.kind in ("sequence", "draw")


def _run_steps(
    loop: Loop, function: Callable[..., Any], values: Sequence[Tensor], length: int, batch: int
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """The states before each step and after the last by name, and the outputs, stacked over time."""
    state = {port.name: value for port, value in zip(loop.inputs, values, strict=True) if port.kind == "state"}
    states = {name: [value] for name, value in state.items()}
    outputs: list[list[Tensor]] = [[] for port in loop.outputs if port.kind == "sequence"]
    for time in range(length):
        arguments = []
        for port, value in zip(loop.inputs, values, strict=True):
            arguments.append(value[time] if _has_time(port) else state[port.name] if port.kind == "state" else value)
        results = list(zip(loop.outputs, function(batch, *arguments), strict=True))
        state = {port.name: value for port, value in results if port.kind == "state"}
        for name, value in state.items():
            states[name].append(value)
        for column, value in zip(outputs, [v for port, v in results if port.kind == "sequence"], strict=True):
            column.append(value)
    return {name: torch.stack(column) for name, column in states.items()}, tuple(map(torch.stack, outputs))
