"""The engine `stepwise`: stages between the insides at once, insides step by step with torch's operators.

A sweep goes window by window, every stage in turn, so that what only one window needs is freed with it.
Knows splits; knows nothing of cells, gradients, resets or masks. Any device, any operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.program import Program, Timed

WINDOW_ROWS = {"cpu": 512, "kernels": 4096}  # rows an at-once stage takes together: enough for a fast product
MANY_ROWS = 65536  # on other devices
WINDOWS = 12  # at least so many in a long sequence on the CPU: what one needs is then a small part of the whole
FEW_ROWS = 128  # below so many rows a window a product slows down


def run(
    program: Program, values: Sequence[Tensor], length: int, batch: int, befores: Mapping[str, fx.Node] | None = None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs, in the order of the loop's, and for the asked states the sequence of what each step found.

    values    in the order of the loop's inputs: sequences and draws (length, batch, ...), states (batch, ...)
    befores   for states whose sequence before each step is wanted: the result that is their sequence after each step
    """
    device = values[0].device if values else torch.device("cpu")
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        sweep = _Sweep(program, values, length, batch, device, befores or {})
        kernels = any(timed.kernel is not None for timed in program.timed)
        for start, end in _windows(length, batch, program.reverse, "kernels" if kernels else device.type):
            sweep.window(start, end)
        return sweep.results(), sweep.befores()


def _windows(length: int, batch: int, reverse: bool, device: str) -> Iterator[tuple[int, int]]:
    """Stretches of steps in the order of the sweep, of about equal size."""
    most = max(1, WINDOW_ROWS.get(device, MANY_ROWS) // batch)
    count = max(1, -(-length // most))
    if device == "cpu":
        count = max(count, min(WINDOWS, length, length * batch // FEW_ROWS))
    stretches = list(pairwise(length * index // count for index in range(count + 1)))
    yield from reversed(stretches) if reverse else stretches


class _Sweep:
    """One pass over time.

    given    what does not vary with time, and the sequences handed in
    local    sequences of the present window
    whole    sequences of the full length that the loop gives out
    """

    def __init__(
        self,
        program: Program,
        values: Sequence[Tensor],
        length: int,
        batch: int,
        device: torch.device,
        befores: Mapping[str, fx.Node],
    ) -> None:
        self.program, self.length, self.batch, self.device = program, length, batch, device
        self.reverse = program.reverse
        self.wanted = befores
        self.owners = {node: name for name, node in list(befores.items())[::-1]}  # the first state of each
        self.given: dict[fx.Node, Tensor] = dict(zip(program.inputs, values, strict=True))
        self.initial = {name: self.given[out].contiguous() for name, (_, out) in program.delays.items()}
        self.state = dict(self.initial)
        self.totals: dict[fx.Node, Tensor] = {}
        self.local: dict[fx.Node, Tensor] = {}
        self.whole: dict[fx.Node, Tensor] = {}
        self.packed: dict[Any, list[Tensor]] = {}  # matrices as kernels read them
        if program.once is not None:
            stage, function = program.once
            found = function(batch, *(self.given[node] for node in stage.reads))
            self.given.update(zip(stage.writes, found, strict=True))

    def window(self, start: int, end: int) -> None:
        program, given = self.program, self.given
        self.local = {node: given[node][start:end] for node in program.sequences}
        for timed in program.timed:
            if timed.kernel is not None:
                self._by_kernel(timed.kernel, start, end)
            elif timed.inside:
                self._inside(timed, start, end)
            else:
                self._at_once(timed, start, end)
            for node in timed.done:
                self.local.pop(node, None)
        for node in program.summed:
            self._add(node, self._local(node, end - start).sum(0))
        last = 0 if self.reverse else -1
        for name, into in program.shifts:
            self.state[name] = self.local[into][last] if into in self.local else given[into]

    def _local(self, node: fx.Node, steps: int) -> Tensor:
        """A value of the window; what is the same at every step is spread over it."""
        if node in self.local:
            return self.local[node]
        value = self.given[node]
        return value.unsqueeze(0).expand(steps, *value.shape)

    def _at_once(self, timed: Timed, start: int, end: int) -> None:
        steps = end - start
        reads = [self.state[name] for name in timed.states]
        for node, axis in timed.varying:
            value = self._local(node, steps)
            flat = value.flatten(0, 1) if axis == 0 else value.movedim(0, axis).flatten(axis, axis + 1)
            reads.append(flat.contiguous())  # kernels trust the trace, which saw it so
        reads += [self.given[node] for node in timed.fixed]
        for (node, rows), value in zip(timed.writes, timed.function(steps * self.batch, *reads), strict=True):
            if rows is None:
                self._add(node, value)
                continue
            value = value.unflatten(rows, (steps, self.batch))
            self._keep(node, value if rows == 0 else value.movedim(rows, 0), start, end)

    def _inside(self, timed: Timed, start: int, end: int) -> None:
        steps, count, function, batch = end - start, len(timed.states), timed.function, self.batch
        fixed = [self.given[node] for node in timed.fixed]
        rooms = [self._room(node, (batch, *node.meta["val"].shape[1:]), start, end) for node in timed.placed]
        columns = [self._local(node, steps).contiguous().unbind(0) for node, _ in timed.varying]
        places = [room.unbind(0) for room in rooms]
        if self.reverse:
            columns, places = [column[::-1] for column in columns], [place[::-1] for place in places]
        made: list[list[Tensor]] = [[] for _ in timed.loose]
        state: Sequence[Tensor] = [self.state[name] for name in timed.states]
        reads: Any = zip(*columns, strict=True) if columns else repeat((), steps)
        rest: Any = zip(*places, strict=True) if places else repeat((), steps)
        for read, place in zip(reads, rest, strict=True):
            results = function(batch, *state, *read, *fixed, *place)
            state = results[:count]
            for column, (index, _) in zip(made, timed.loose, strict=True):
                column.append(results[index])
        self.state.update(zip(timed.states, state, strict=True))
        self.local.update(zip(timed.placed, rooms, strict=True))
        del columns, results, state, read
        for _, node in timed.loose:
            column = made.pop(0)
            self._keep(node, column[::-1] if self.reverse else column, start, end)

    def _by_kernel(self, inside: Any, start: int, end: int) -> None:
        """All steps of the window by one call of a kernel."""
        steps, batch = end - start, self.batch
        states = [self.state[name].contiguous() for name in inside.states]
        following = [torch.empty_like(state) for state in states]
        fixed = [self.given[node] for node in inside.fixed]
        if inside not in self.packed:
            self.packed[inside] = inside.built.pack(fixed)
        rooms = [
            self._room(node, (batch, *node.meta["val"].shape[1:]), start, end)
            if axis == 0
            else self._space(node, steps, _rows_first(node, axis, batch))
            for node, axis in inside.writes
        ]
        values = {
            "state": states,
            "read": [self._local(node, steps).movedim(axis + 1, 1).contiguous() for node, axis in inside.reads],
            "row": [self.given[node].movedim(axis, 0).contiguous() for node, axis in inside.rows],
            "fixed": [value.contiguous() for value in fixed],
            "next": following,
            "write": rooms,
        }
        inside.built.run(values, self.packed[inside], steps, batch)
        self.state.update(zip(inside.states, following, strict=True))
        for (node, axis), room in zip(inside.writes, rooms, strict=True):
            if axis == 0:
                self.local[node] = room
            else:
                self._keep(node, room.movedim(1, axis + 1), start, end)

    def _keep(self, node: fx.Node, value: Tensor | list[Tensor], start: int, end: int) -> None:
        """Hold a sequence for the window, and in its place of the whole if the loop gives it out."""
        kept = node in self.program.kept
        if not kept or (end - start == self.length and node not in self.owners):
            self.local[node] = torch.stack(value) if isinstance(value, list) else value
            if kept:
                self.whole[node] = self.local[node]
            return
        self.local[node] = room = self._room(node, value[0].shape, start, end)
        if isinstance(value, list):
            torch.stack(value, out=room)
        else:
            room.copy_(value)

    def _room(self, node: fx.Node, shape: Sequence[int], start: int, end: int) -> Tensor:
        """Memory for a sequence of the window: its place in the whole, if the loop gives it out."""
        if node not in self.program.kept:
            return self._space(node, end - start, shape)
        if node not in self.whole:
            owned = node in self.owners
            self.whole[node] = self._with_first(node, shape) if owned else self._space(node, self.length, shape)
        return self.whole[node][start:end]

    def _space(self, node: fx.Node, steps: int, shape: Sequence[int]) -> Tensor:
        return torch.empty((steps, *shape), dtype=node.meta["val"].dtype, device=self.device)

    def _with_first(self, node: fx.Node, shape: Sequence[int]) -> Tensor:
        """Room for the states after each step, behind (in front of, if time is reversed) the one before the first."""
        room = self._space(node, self.length + 1, shape)
        room[-1 if self.reverse else 0] = self.initial[self.owners[node]]
        return room[:-1] if self.reverse else room[1:]

    def _add(self, node: fx.Node, value: Tensor) -> None:
        self.totals[node] = self.totals[node].add_(value) if node in self.totals else value

    def befores(self) -> dict[str, Tensor]:
        """The sequences of states as each step found them."""
        return {name: self._before(name, node) for name, node in self.wanted.items()}

    def _before(self, name: str, node: fx.Node) -> Tensor:
        """The same memory as the sequence after each step, one step earlier; a new one if that is not its own."""
        if node not in self.whole or name != self.owners[node]:
            after = self.whole[node] if node in self.whole else self._local_whole(node)
            first = self.initial[name].unsqueeze(0)
            return torch.cat([after[1:], first] if self.reverse else [first, after[:-1]])
        after = self.whole[node]
        step = after.stride(0)
        place = after.storage_offset() + (step if self.reverse else -step)
        return after.as_strided(after.shape, after.stride(), place)

    def results(self) -> list[Tensor]:
        if self.program.finish is not None:
            stage, function = self.program.finish
            reads = [self.totals[node] if node in self.totals else self.given[node] for node in stage.reads]
            self.totals.update(zip(stage.writes, function(self.batch, *reads), strict=True))
        return [self._result(kind, name, node) for kind, name, node in self.program.outputs]

    def _result(self, kind: str, name: str, node: fx.Node) -> Tensor:
        if kind == "state":
            return self.state[name]
        if kind == "total":
            return self.totals[node]
        return self.whole[node] if node in self.whole else self._local_whole(node)

    def _local_whole(self, node: fx.Node) -> Tensor:
        """A result that is an input itself, or the same at every step."""
        value = self.given[node]
        return value if node in self.program.sequences else value.expand(self.length, *value.shape)


def _rows_first(node: fx.Node, axis: int, batch: int) -> list[int]:
    """A value's shape with its row axis in front."""
    sizes = list(node.meta["val"].shape)
    return [batch, *sizes[:axis], *sizes[axis + 1 :]]
