"""The forward sweep of a call that failed: which operator first made a value that is not finite and reaches a result.

Blocks of steps are run as the engine `reference` runs them. A block with a result that is not finite is run again from
its own first state, one operator after another. An infinity that a step writes itself (a mask of -inf before a
softmax), and what it becomes while it stays one, is intended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine import reference
from leporello.engine.state_gradient import ALL, Passing, broadcast_mask
from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import row_axes
from leporello.loop.graph import FASTER_CALLS, arguments, function_of
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import without_own_gradients
from leporello.loop.port import Port, Role
from leporello.nets.non_finite.origin import Origin, kind_of, made_by, tensors_in

BLOCK_STEPS = 64  # steps that are run before their results are checked
States = dict[str, Tensor]


def _without_writes(loop: Loop) -> Loop:
    """The Loop that leaves the buffers of the cell as they are."""
    draft = Draft(loop)
    for write in loop.written.values():
        draft.graph.erase_node(draft.copies[write])
    return draft.close()


@dataclass(frozen=True, eq=False)
class FailedCall:
    """The call that failed, as a Loop with its values; it can be run in blocks of steps, or one step by itself.

    function   one step of the loop
    values     in the order of the loop's inputs; sequences and draws are (length, batch, ...)
    """

    loop: Loop
    function: Callable[..., Any]
    values: tuple[Tensor, ...]
    length: int
    batch: int

    @staticmethod
    def of_call(loop: Loop, values: Sequence[Tensor], length: int, batch: int) -> FailedCall:
        loop = _without_writes(without_own_gradients(loop))
        return FailedCall(loop, function_of(loop.graph), tuple(values), length, batch)

    @cached_property
    def past(self) -> Tensor | None:
        """Where rows have ended, (length, batch): values there reach no result."""
        return next((value for port, value in self.pairs if port.role is Role.PAST), None)

    @property
    def pairs(self) -> list[tuple[Port, Tensor]]:
        return list(zip(self.loop.inputs, self.values, strict=True))

    @property
    def states(self) -> States:
        """The state leaves before the first step, by name."""
        return {port.name: value for port, value in self.pairs if port.kind == "state"}

    def blocks(self, reverse: bool = False) -> Iterator[tuple[int, int]]:
        starts = range(0, self.length, BLOCK_STEPS)
        for first in reversed(starts) if reverse else starts:
            yield first, min(first + BLOCK_STEPS, self.length)

    def of(self, first: int, last: int, states: Mapping[str, Tensor]) -> FailedCall:
        """The steps from `first` to before `last`, from a state."""
        values = []
        for port, value in self.pairs:
            timed = port.kind in ("sequence", "draw")
            values.append(value[first:last] if timed else states[port.name] if port.kind == "state" else value)
        return replace(self, values=tuple(values), length=last - first)

    def run(self, passing: Passing = ALL) -> dict[tuple[str, str], Tensor]:
        """The loop's outputs by kind and name."""
        results = reference.run(self.loop, self.function, self.values, self.length, self.batch, passing)
        return {(port.kind, port.name): value for port, value in zip(self.loop.outputs, results, strict=True)}

    def nodes(self, time: int = 0) -> dict[fx.Node, Any]:
        """Every value of one step, by its node."""
        graph = self.loop.graph
        read = [value[time] if port.kind in ("sequence", "draw") else value for port, value in self.pairs]
        values: dict[fx.Node, Any] = dict(zip([next(iter(graph.nodes))], [self.batch], strict=True))
        values |= dict(zip(self.loop.placeholders, read, strict=True))
        with torch.autocast(self.values[0].device.type if self.values else "cpu", enabled=False):
            for node in self.loop.nodes:
                values[node] = evaluated(node, values)
        return values

    def row_axis(self, node: fx.Node, value: Tensor) -> int | None:
        """The batch axis of a value, None where it has none.

        For a loop traced for one batch only it is axis 0, if that has the size of the batch.
        """
        if self.loop.traced_for_one_batch:
            return 0 if value.dim() and value.shape[0] == self.batch else None
        stand_in = node.meta.get("val")
        axes = row_axes(stand_in) if isinstance(stand_in, Tensor) else []
        fits = len(axes) == 1 and value.dim() > axes[0] and value.shape[axes[0]] == self.batch
        return axes[0] if fits else None

    def alive(self, value: Tensor) -> Tensor:
        """A sequence (length, batch, ...) with zeros where rows have ended."""
        return value if self.past is None else value.masked_fill(broadcast_mask(self.past, value), 0)


def evaluated(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """The result of an operator for the values it reads."""
    args, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    operator: Any = FASTER_CALLS.get(node.target, node.target)
    return operator(*args, **options)


def states_in(results: Mapping[tuple[str, str], Tensor]) -> States:
    return {name: value for (kind, name), value in results.items() if kind == "state"}


@dataclass(eq=False)
class Forward:
    """What a forward sweep found.

    origin   of the first value that is not finite, None where there is none
    starts   the state before the first step of each block, by that step
    results  the loop's outputs by kind and name: whole sequences, summed totals, final states
    """

    origin: Origin | None = None
    starts: dict[int, States] = field(default_factory=dict)
    results: dict[tuple[str, str], Tensor] = field(default_factory=dict)


@torch.no_grad()
def forward(failed: FailedCall) -> Forward:
    """Run all steps in blocks, and search the first block that has a result that is not finite."""
    sweep, states = Forward(), failed.states
    intended = {name for name, value in states.items() if kind_of(value) is not None}
    blocks: list[dict[tuple[str, str], Tensor]] = []
    for first, last in failed.blocks():
        sweep.starts[first] = states
        block = failed.of(first, last, states)
        results = block.run()
        blocks.append(results)
        suspicious = sweep.origin is None and any(
            kind_of(block.alive(value) if kind == "sequence" else value) for (kind, _), value in results.items()
        )
        if suspicious:
            sweep.origin = _step_by_step(failed, first, last, states, intended)
        states = states_in(results)
    sweep.results = {(kind, name): _whole(kind, [block[kind, name] for block in blocks]) for kind, name in blocks[0]}
    return sweep


def _whole(kind: str, parts: list[Tensor]) -> Tensor:
    """One output of all blocks together."""
    if kind == "state":
        return parts[-1]
    return torch.cat(parts) if kind == "sequence" else torch.stack(parts).sum(0)


def _step_by_step(failed: FailedCall, first: int, last: int, states: States, intended: set[str]) -> Origin | None:
    """The origin within a block.

    states     before its first step
    intended   states that are infinite on purpose; those that become so are added to it
    """
    for time in range(first, last):
        one_step = failed.of(time, time + 1, states)
        results = one_step.run()
        if any(kind_of(value) for value in results.values()):
            origin = _Step(one_step, time, intended).origin()
            if origin is not None:
                return origin
            intended |= {name for name, value in states_in(results).items() if kind_of(value) is not None}
        states = states_in(results)
    return None


class _Step:
    """One step with all its values.

    rank              the place of each node in the graph
    may_be_infinite   inputs in which an infinity is no error of the step
    """

    def __init__(self, one_step: FailedCall, time: int, intended: set[str]) -> None:
        self.failed, self.time = one_step, time
        self.values = one_step.nodes()
        self.rank = {node: index for index, node in enumerate(one_step.loop.graph.nodes)}
        ports = zip(one_step.loop.inputs, one_step.loop.placeholders, strict=True)
        self.may_be_infinite = {node for port, node in ports if port.kind != "state" or port.name in intended}

    def origin(self) -> Origin | None:
        """Of the first row that has one; where there is interaction across the batch, of all rows together."""
        if self.failed.loop.batch_interaction is not None:
            return self._of_row(None)
        return next((origin for row in self._rows() if (origin := self._of_row(row)) is not None), None)

    def _rows(self) -> list[int]:
        """Rows that have not ended and whose results are not finite."""
        wrong = torch.zeros(self.failed.batch, dtype=torch.bool)
        for node in self.failed.loop.results:
            value = self.values[node]
            if kind_of(value) is not None and value.dim() and value.shape[0] == self.failed.batch:
                wrong |= value.isfinite().logical_not().reshape(self.failed.batch, -1).any(1).cpu()
        if self.failed.past is not None:
            wrong &= ~self.failed.past[0].cpu()
        return [int(row) for row in wrong.nonzero()]

    def _of_row(self, row: int | None) -> Origin | None:
        """Go back from a result through what was not finite before it, to an operator that read finite values only.

        row   the row that is looked at; None for all together. The result is None where all that is found is intended
        """
        kinds = {node: kind for node, value in self.values.items() if (kind := self._kind(node, value, row))}
        sources: dict[fx.Node, list[fx.Node]] = {}  # of each value that is not intended, those like it that it read
        intended: set[fx.Node] = set()
        for node, kind in kinds.items():
            read = [source for source in node.all_input_nodes if source in kinds]
            unintended = [source for source in read if source not in intended]
            written = node in self.may_be_infinite if node.op == "placeholder" else bool(read) or _writes_infinity(node)
            if kind != "nan" and written and not unintended:
                intended.add(node)
            else:
                sources[node] = unintended
        wrong = [node for node in self.failed.loop.results if node in sources]
        if not wrong:
            return None
        node = min(wrong, key=self.rank.__getitem__)
        while sources[node]:
            alike = [source for source in sources[node] if kinds[source] == "nan"] if kinds[node] == "nan" else []
            node = min(alike or sources[node], key=self.rank.__getitem__)
        if node.op == "placeholder":
            return Origin("state", kinds[node], name=node.meta.get("label"), step=self.time, row=row)
        return made_by(node, "forward", kinds[node], self.time, self._first_row(node) if row is None else row)

    def _kind(self, node: fx.Node, value: Any, row: int | None) -> Any:
        kinds = [kind_of(self._part(node, tensor, row)) for tensor in tensors_in(value)]
        return "nan" if "nan" in kinds else next((kind for kind in kinds if kind), None)

    def _part(self, node: fx.Node, value: Tensor, row: int | None) -> Tensor:
        axis = self.failed.row_axis(node, value) if row is not None else None
        return value if axis is None or row is None else value.select(axis, row)

    def _first_row(self, node: fx.Node) -> int | None:
        value = self.values[node]
        axis = self.failed.row_axis(node, value) if isinstance(value, Tensor) else None
        if axis is None:
            return None
        return int(value.isfinite().logical_not().movedim(axis, 0).reshape(self.failed.batch, -1).any(1).nonzero()[0])


def _writes_infinity(node: fx.Node) -> bool:
    """Whether infinity stands among an operator's own arguments, as in masked_fill(mask, -inf)."""
    numbers = [argument for argument in (*arguments(node), *node.kwargs.values()) if isinstance(argument, float)]
    return any(math.isinf(number) for number in numbers)
