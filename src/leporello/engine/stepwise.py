"""The engine `stepwise`: stages between the insides at once, insides step by step with torch's operators.

A sweep goes window by window, every stage in turn, so that what only one window needs is freed with it.
Knows splits; knows nothing of cells, gradients, resets or masks. Any device, any operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.classes import Class
from leporello.loop.family import clean_row_axis
from leporello.loop.function import function_of
from leporello.loop.stages import Split, Stage

WINDOW_ROWS = {"cpu": 1024, "cuda": 65536}  # rows an at-once stage takes together: enough for a fast product


@dataclass(frozen=True, eq=False)
class Program:
    """A split made ready: a Python function per stage."""

    split: Split
    functions: tuple[Callable[..., Any], ...]


def program(split: Split) -> Program:
    return Program(split, tuple(function_of(stage.graph) for stage in split.stages))


def run(
    ready: Program, values: Sequence[Tensor], length: int, batch: int, befores: Mapping[str, fx.Node] | None = None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs, in the order of the loop's, and for the asked states the sequence of what each step found.

    values    in the order of the loop's inputs: sequences and draws (length, batch, ...), states (batch, ...)
    befores   for states whose sequence before each step is wanted: the result that is their sequence after each step
    """
    with torch.no_grad(), torch.autocast(_device_type(values), enabled=False):
        sweep = _Sweep(ready, values, length, batch, befores or {})
        for start, end in _windows(length, batch, ready.split.loop.reverse, _device_type(values)):
            sweep.window(start, end)
        return sweep.results(), sweep.befores()


def _device_type(values: Sequence[Tensor]) -> str:
    return values[0].device.type if values else "cpu"


def _windows(length: int, batch: int, reverse: bool, device: str) -> Iterator[tuple[int, int]]:
    """Stretches of steps in the order of the sweep, of about equal size."""
    most = max(1, WINDOW_ROWS.get(device, 65536) // batch)
    count = -(-length // most)
    borders = [length * index // count for index in range(count + 1)]
    stretches = list(zip(borders, borders[1:], strict=False))
    yield from reversed(stretches) if reverse else stretches


class _Sweep:
    """One pass over time."""

    def __init__(
        self, ready: Program, values: Sequence[Tensor], length: int, batch: int, befores: Mapping[str, fx.Node]
    ) -> None:
        self.split, self.loop = ready.split, ready.split.loop
        self.length, self.batch, self.reverse = length, batch, self.loop.reverse
        self.wanted = befores
        self.given = dict(zip(self.loop.placeholders, values, strict=True))
        self.delays = self.loop.delays
        self.initial = {name: self.given[out] for name, (_, out) in self.delays.items()}
        self.state = dict(self.initial)
        self.stages = list(zip(self.split.stages, ready.functions, strict=True))
        self.totals: dict[fx.Node, Tensor] = {}
        self.whole: dict[fx.Node, Tensor] = {}  # sequences of the full length
        self.local: dict[fx.Node, Tensor] = {}  # sequences of the present window
        self.kept = {node for port, node in self._outputs() if port.kind == "sequence"}
        self.summed = {node for port, node in self._outputs() if port.kind == "total" and port.rows}
        for stage, function in self.stages:
            if stage.kind == "once":
                found = function(batch, *(self.given[node] for node in stage.reads))
                self.given.update(zip(stage.writes, found, strict=True))

    def _outputs(self) -> list[tuple[Any, fx.Node]]:
        return list(zip(self.loop.outputs, self.loop.results, strict=True))

    def window(self, start: int, end: int) -> None:
        self.local = {
            node: self.given[node][start:end]
            for port, node in zip(self.loop.inputs, self.loop.placeholders, strict=True)
            if port.kind in ("sequence", "draw")
        }
        for stage, function in self.stages:
            if stage.kind == "at once":
                self._at_once(stage, function, start, end)
            elif stage.kind == "inside":
                self._inside(stage, function, start, end)
        for node in self.summed:
            self._add(node, self._local(node, end - start).sum(0))
        for name, (into, _) in self.delays.items():
            if not self._on_cycle(name):
                last = 0 if self.reverse else -1
                self.state[name] = self.local[into][last] if into in self.local else self.given[into]

    def _on_cycle(self, name: str) -> bool:
        return any(stage.kind == "inside" and name in stage.states for stage, _ in self.stages)

    def _local(self, node: fx.Node, steps: int) -> Tensor:
        """A value of the window; what is the same at every step is spread over it."""
        if node in self.local:
            return self.local[node]
        value = self.given[node]
        return value.unsqueeze(0).expand(steps, *value.shape)

    def _at_once(self, stage: Stage, function: Callable[..., Any], start: int, end: int) -> None:
        steps = end - start
        reads = [self._flat(stage, node, steps) for node in stage.reads]
        for node, value in zip(stage.writes, function(steps * self.batch, *reads), strict=True):
            if self.split.classes[node] is Class.REDUCED:
                self._add(node, value)
                continue
            axis = _row_axis(node)
            value = value.unflatten(axis, (steps, self.batch)).movedim(axis, 0)
            self._keep(node, value, start, end)

    def _flat(self, stage: Stage, node: fx.Node, steps: int) -> Tensor:
        """A read value with length x batch rows."""
        kind = self.split.classes[node]
        if kind is Class.FIXED:
            return self.given[node]
        if kind is Class.VARYING and any(self.delays[name][1] is node for name in stage.states):
            return self.state[next(name for name in stage.states if self.delays[name][1] is node)]
        axis = _row_axis(node)
        return self._local(node, steps).movedim(0, axis).flatten(axis, axis + 1)

    def _inside(self, stage: Stage, function: Callable[..., Any], start: int, end: int) -> None:
        steps, count = end - start, len(stage.states)
        varying = [node for node in stage.reads[count:] if self.split.classes[node] is Class.VARYING]
        fixed = [self.given[node] for node in stage.reads[count + len(varying) :]]
        columns = [self.local[node].unbind(0) for node in varying]
        if self.reverse:
            columns = [column[::-1] for column in columns]
        state: Sequence[Tensor] = [self.state[name] for name in stage.states]
        made: list[Sequence[Tensor]] = []
        for read in zip(*columns, strict=True) if columns else repeat((), steps):
            results = function(self.batch, *state, *read, *fixed)
            state = results[:count]
            made.append(results[count:])
        self.state.update(zip(stage.states, state, strict=True))
        if self.reverse:
            made.reverse()
        for index, node in enumerate(stage.writes):
            self._keep(node, [step[index] for step in made], start, end)

    def _keep(self, node: fx.Node, value: Tensor | list[Tensor], start: int, end: int) -> None:
        """Hold a sequence for the window, and in its place of the whole if the loop gives it out."""
        delayed = node in self.wanted.values()
        if node not in self.kept or (end - start == self.length and not delayed):
            self.local[node] = torch.stack(value) if isinstance(value, list) else value
            if node in self.kept:
                self.whole[node] = self.local[node]
            return
        if node not in self.whole:
            self.whole[node] = self._space(node, value[0], delayed)
        place = self.whole[node][start:end]
        if isinstance(value, list):
            torch.stack(value, out=place)
        else:
            place.copy_(value)
        self.local[node] = place

    def _space(self, node: fx.Node, like: Tensor, delayed: bool) -> Tensor:
        """Room for a sequence; one more step in front (behind, if time is reversed) for the state before it."""
        if not delayed:
            return like.new_empty((self.length, *like.shape))
        room = like.new_empty((self.length + 1, *like.shape))
        name = next(name for name, found in self.wanted.items() if found is node)
        room[-1 if self.reverse else 0] = self.initial[name]
        return room[:-1] if self.reverse else room[1:]

    def _add(self, node: fx.Node, value: Tensor) -> None:
        self.totals[node] = self.totals[node].add_(value) if node in self.totals else value

    def befores(self) -> dict[str, Tensor]:
        """The sequences of states as each step found them."""
        return {name: self._before(name, node) for name, node in self.wanted.items()}

    def _before(self, name: str, node: fx.Node) -> Tensor:
        """The same memory as the sequence after each step, one step earlier; a new one if that is an input."""
        if node not in self.whole:
            after, first = self._local_whole(node), self.initial[name].unsqueeze(0)
            return torch.cat([after[1:], first] if self.reverse else [first, after[:-1]])
        after = self.whole[node]
        step = after.stride(0)
        place = after.storage_offset() + (step if self.reverse else -step)
        return after.as_strided(after.shape, after.stride(), place)

    def results(self) -> list[Tensor]:
        for stage, function in self.stages:
            if stage.kind == "finish":
                reads = [self.totals[node] if node in self.totals else self.given[node] for node in stage.reads]
                self.totals.update(zip(stage.writes, function(self.batch, *reads), strict=True))
        return [self._result(port, node) for port, node in self._outputs()]

    def _result(self, port: Any, node: fx.Node) -> Tensor:
        if port.kind == "state":
            return self.state[port.name]
        if port.kind == "total":
            return self.totals[node]
        return self.whole[node] if node in self.whole else self._local_whole(node)

    def _local_whole(self, node: fx.Node) -> Tensor:
        """A result that is an input itself."""
        value = self.given[node]
        return value if self.split.classes[node] is Class.VARYING else value.expand(self.length, *value.shape)


def _row_axis(node: fx.Node) -> int:
    axis = clean_row_axis(node.meta["val"])
    assert axis is not None, f"{node} has no row axis of its own"
    return axis
