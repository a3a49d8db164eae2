"""`CapturedSteps`: the steps of an inside recorded once and replayed, so that Python launches no operator of its own.

On a GPU a recording is a CUDA graph (`engine/gpu/graphs/cuda_graphs.py`). It reads and writes memory of its own: what a
call has for some steps is copied there, the steps are replayed, and their results are copied to where the call wants
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine.gpu.graphs import recordings
from leporello.engine.gpu.graphs.captured_memory import (
    Kind,
    StepMemory,
    Window,
    copy_all,
    form_of_steps,
    is_plain,
    layout_of,
    stacked,
)
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recorder, Recording
from leporello.engine.gpu.graphs.recordings import Recordings, lasting, switches

STEPS = 32  # of a recording, at most
FEWEST_STEPS = 4  # of a window: fewer are as fast without
MEMORY_BYTES = 64 << 20  # of one kind of call, for what its steps read and write
ODD_SIZES = 3  # recordings of a kind with another number of steps than a power of two

Results = tuple[list[Tensor], list[Tensor]]


def captured(
    function: Callable[..., Any], count: int, loose: Sequence[tuple[int, int]], device: torch.device
) -> CapturedSteps | None:
    """An inside's steps, to be recorded; None on a device that has no recorder."""
    return CapturedSteps(function, count, loose) if recordings.can_capture(device) else None


class CapturedSteps(Recordings[Kind]):
    """The recordings of one inside.

    function   one step: of the batch, states, reads, fixed values and memory for placed results; see `TimedStage`
    count      states among its results, the first ones
    loose      its other results that are not placed: their index and row axis
    """

    def __init__(self, function: Callable[..., Any], count: int, loose: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.function, self.count, self.loose = function, count, loose

    @property
    def about(self) -> str:
        """How the steps are run, for `explain`."""
        if self.missing is not None:
            return self.missing
        sizes = sorted({size for kind in self.kinds.values() for _, size in kind.recordings}, reverse=True)
        if sizes:
            counts = " and ".join([", ".join(map(str, sizes[:-1])), str(sizes[-1])]) if sizes[1:] else str(sizes[0])
            return f"captured in CUDA graphs of {counts} steps"
        if any(kind.too_large for kind in self.kinds.values()):
            return f"not captured in CUDA graphs: {FEWEST_STEPS} steps need more than {MEMORY_BYTES >> 10:,} KiB"
        return f"captured in CUDA graphs of up to {STEPS} steps by the second call of a kind"

    def run(
        self,
        steps: int,
        batch: int,
        reverse: bool,
        states: Sequence[Tensor],
        reads: Sequence[Tensor],
        fixed: Sequence[Tensor],
        places: Sequence[Tensor],
    ) -> Results | None:
        """Run all steps of a window; returns the states after it and the loose results, flat.

        None where the caller has to run them: at the first call of a kind, and wherever nothing can be recorded.

        reads, places   [steps, ...], each step contiguous
        """
        device = states[0].device
        recorder = self.recorder(device) if steps >= FEWEST_STEPS else None
        if recorder is None:
            return None
        if not all(is_plain(value, device) for value in (*states, *reads, *fixed, *places)):
            self.refused = f"its steps read what is no ordinary tensor on {device}"
            return None
        window = Window(batch, reverse, states, reads, fixed, places)
        with recorder.turn():
            kind = self._kind(window, device)
            if kind is None or kind.too_large:
                return None
            try:
                return self._replayed(recorder, kind, window, steps)
            except (NotRecorded, torch.OutOfMemoryError) as error:
                kind.drop()
                self.failed(error)
                return None

    def _kind(self, window: Window, device: torch.device) -> Kind | None:
        """The kind of a call; None for the first of its kind."""
        steps = tuple(map(form_of_steps, (*window.reads, *window.places)))
        rows = (int(window.batch), getattr(window.batch, "lengths", ()))
        key = (device, rows, window.reverse, layout_of(window.states), steps, layout_of(window.fixed), switches())
        addresses = [value.data_ptr() for value in window.fixed]
        kind = self.kind(key, lambda: Kind(addresses))
        if kind is not None and kind.note(addresses):
            kind.drop()
        return kind

    # ---- one window

    def _replayed(self, recorder: Recorder, kind: Kind, window: Window, steps: int) -> Results | None:
        if kind.memory is None:
            with lasting(recorder):
                kind.memory = self._memory(kind, window)
        memory = kind.memory
        if memory is None:
            kind.too_large = True
            return None
        memory.copy_fixed(window)
        states = list(window.states)
        axes = [axis for _, axis in self.loose]
        whole = [
            one.new_empty((*one.shape[1 : 1 + axis], steps, *one.shape[1 + axis :]))
            for one, axis in zip(memory.loose, axes, strict=True)
        ]
        for start, size in parts((size for _, size in kind.recordings), memory.steps, steps, window.reverse):
            memory.copy_reads(window, start, size)
            with lasting(recorder):
                given = memory.states_like(states)
            copy_all((to, value) for to, value in zip(given, states, strict=True) if to is not value)
            key = (layout_of(given), size)
            if key not in kind.recordings:
                states = [state.clone() for state in given]  # the steps run once before they are recorded
                kind.recordings[key] = self._recorded(recorder, memory, window, given, size)
                copy_all(zip(given, states, strict=True))
            recording, states = kind.recordings[key]
            recording()
            end = start + size
            copy_all((to[start:end], value[:size]) for to, value in zip(window.places, memory.places, strict=True))
            for to, value, axis in zip(whole, memory.loose, axes, strict=True):
                to.narrow(axis, start, size).copy_(stacked(value, axis, size))
        flat = [value.flatten(axis, axis + 1) for value, axis in zip(whole, axes, strict=True)]
        return [state.clone() for state in states], flat

    # ---- recordings

    def _memory(self, kind: Kind, window: Window) -> StepMemory | None:
        """Memory for a kind of call; None where it would be too much."""
        memory_of_step = [torch.empty_like(value[0]) for value in window.places]
        first = [value[0] for value in window.reads]
        results = self.function(window.batch, *window.states, *first, *window.fixed, *memory_of_step)
        loose = [results[index] for index, _ in self.loose]
        size, steps = sum(value.nbytes for value in (*first, *memory_of_step, *loose)), STEPS
        while steps * size > MEMORY_BYTES:
            steps //= 2
        return StepMemory.of(steps, window, loose, kind.moving) if steps >= FEWEST_STEPS else None

    def _recorded(
        self, recorder: Recorder, memory: StepMemory, window: Window, given: Sequence[Tensor], size: int
    ) -> tuple[Recording, list[Tensor]]:
        """A recording of `size` steps, and the memory in which it leaves the states.

        given   the memory in which it finds them
        """
        fixed = memory.fixed(window)

        def one_step(states: Sequence[Tensor], time: int) -> Sequence[Tensor]:
            reads, places = ([value[time] for value in values] for values in (memory.reads, memory.places))
            results: Sequence[Tensor] = self.function(window.batch, *states, *reads, *fixed, *places)
            return results

        with lasting(recorder):
            after = memory.states_like(one_step(given, 0 if window.reverse else size - 1)[: self.count])
        written = {state.untyped_storage().data_ptr() for state in after}

        def run(size: int) -> Sequence[Tensor]:
            now: Sequence[Tensor] = given
            columns: list[list[Tensor]] = [[] for _ in self.loose]
            for time in reversed(range(size)) if window.reverse else range(size):
                results = one_step(now, time)
                now = results[: self.count]
                for column, (index, _) in zip(columns, self.loose, strict=True):
                    column.append(results[index])
            for column, to, (_, axis) in zip(columns, memory.loose, self.loose, strict=True):
                torch.stack(column[::-1] if window.reverse else column, axis, out=stacked(to, axis, size))
            # a state that only passes another one on lies in the memory that is written here
            now = [state.clone() if state.untyped_storage().data_ptr() in written else state for state in now]
            for to, state in zip(after, now, strict=True):
                to.copy_(state)
            return after

        with lasting(recorder):
            recording, _ = recorder.record(lambda: run(1), lambda: run(size))
            return recording, after


def parts(recorded: Iterable[int], most: int, steps: int, reverse: bool) -> list[tuple[int, int]]:
    """A window as (start, steps) of recordings, in the order of the sweep; `recorded` are the steps of those there are.

    What is left behind the whole ones is one recording of its own, or, where there are several such, powers of two.
    """
    sizes, rest = [most] * (steps // most), steps % most
    odd = {size for size in recorded if size & (size - 1)}
    if rest and (rest in odd or len(odd) < ODD_SIZES):
        sizes.append(rest)
    else:
        sizes += [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    found = list(zip(starts, sizes, strict=True))
    return found[::-1] if reverse else found
