"""`CapturedSweep`: a whole sweep of a short call recorded once and replayed, so that Python launches nothing of it.

What a call's kernels and products compute takes less time than Python takes to launch them, where the call is short.
The second call of a kind therefore records all that its sweep launches. Parameters are read where they are. Everything
else that a call reads is copied into the recording's memory, and its results are copied out of it, in one launch each.
What the forward sweep saves for the backward sweep alone is lent instead: it stays where it is, and the recording is
not replayed while somebody has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.engine.functorch_levels import is_transforming
from leporello.engine.gpu.graphs import recordings
from leporello.engine.gpu.graphs.captured_memory import ALIGNMENT, aligned_like, is_plain
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recorder
from leporello.engine.gpu.graphs.recordings import Recordings, lasting, switches
from leporello.engine.gpu.graphs.sweep_recording import Results, SweepCall, SweepKind, SweepRecording, lent
from leporello.loop.port import Port, Role

LONGEST = 256  # steps of a call; the launches of a longer one take a small part of its time
MEMORY_BYTES = 64 << 20  # of what a recording copies and computes, at most; twice that of all recordings of a sweep
LENT_AT_ONCE = 3  # recordings of one kind, so that as many calls may wait for their gradient
WORTH = 4  # a recording may take so many times as long on the device as Python takes for its launches
REPLAYS = 16  # of each recording, on average, beyond the first kinds: else calls are too different to record them

PLAIN = {Tensor, nn.Parameter, type(None)}

Values = Sequence[Tensor | None]


class CapturedSweep(Recordings[SweepKind]):
    """The recordings of one sweep.

    function   that runs it: (length, batch, *values) -> outputs, states before each step
    fixed      indices of its inputs that are parameters, buffers and constants
    saved      of those that the forward sweep may have lent
    others     of those that are not fixed
    lends      of the outputs that are saved for the backward sweep
    """

    def __init__(self, function: Callable[..., Results], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        super().__init__()
        self.function = function
        self.fixed = [i for i, port in enumerate(inputs) if port.role is Role.INVARIANT]
        self.saved = [i for i, port in enumerate(inputs) if port.role in (Role.SAVED, Role.STATE_BEFORE)]
        self.others = [i for i in range(len(inputs)) if i not in self.fixed]
        self.lends = {i for i, port in enumerate(outputs) if port.role is Role.SAVED}
        self.recorded = self.replayed = 0

    @property
    def about(self) -> str:
        """How the sweep is launched, for `explain`."""
        if self.missing is not None:
            return self.missing
        kinds = list(self.kinds.values())
        count = sum(bool(kind.recordings) for kind in kinds)
        if count:
            return f"one CUDA graph, for {count} kind{'s' * (count > 1)} of calls"
        refused = next((kind.refused for kind in kinds if kind.refused), None)
        if refused is not None:
            return f"not captured in a CUDA graph: {refused}"
        return f"captured in a CUDA graph by the second call of a kind, up to {LONGEST} steps"

    def run(self, length: int, batch: int, values: Sequence[Any]) -> Results | None:
        """The sweep of a call by a recording; None where Python has to launch it.

        values   as the function takes them
        """
        if length > LONGEST or not {*map(type, values)} <= PLAIN or is_transforming():
            return None
        device = next((value.device for value in values if value is not None), None)
        recorder = None if device is None else self.recorder(device)
        if recorder is None:
            return None
        if not all([value is None or value.is_contiguous() for value in values]):  # noqa: C419 - half the time
            values = self._contiguous(values)
        addresses = [-1 if value is None else value.data_ptr() for value in values]
        call = SweepCall(length, batch, values, addresses, [index for index in self.saved if addresses[index] in lent])
        key = (device, length, batch, *[at % ALIGNMENT for at in addresses], *call.borrowed, switches())
        reads = call.reads
        with recorder.turn() as stream:
            kind = self._kind(key, call)
            if kind is None or kind.refused is not None:
                return None
            own = [one for one in kind.recordings if one.reads == reads]
            for one in own:
                if one.is_free:
                    kind.copy(recorder, call)
                    self.replayed += 1
                    return one.run(recorder, stream)
            if len(own) == LENT_AT_ONCE or not self._is_worth_it():
                return None
        return self._first(recorder, kind, call)

    def _kind(self, key: Any, call: SweepCall) -> SweepKind | None:
        """The kind of a call; None for the first of its kind."""
        fixed = [call.addresses[index] for index in self.fixed]
        kind = self.kind(key, lambda: SweepKind(fixed))
        if kind is not None and kind.note(fixed):
            kind.drop()
        return kind

    def _contiguous(self, values: Sequence[Any]) -> list[Any]:
        """A call's values, of which those that are not fixed are contiguous, as the function makes them itself."""
        values = list(values)
        for index in self.others:
            if values[index] is not None:
                values[index] = values[index].contiguous()
        return values

    def _is_worth_it(self) -> bool:
        """Whether recordings have been replayed often enough that another one is made."""
        return self.recorded < recordings.KINDS * LENT_AT_ONCE or self.replayed >= REPLAYS * self.recorded

    # ---- recordings

    def _first(self, recorder: Recorder, kind: SweepKind, call: SweepCall) -> Results:
        """Run a call by the function, and record it; its results are those of the recording where that is kept."""
        begin = time.perf_counter()
        results = self.function(call.length, call.batch, *call.values)
        launching = time.perf_counter() - begin
        size = sum(value.nbytes for part in results for value in part if value is not None)
        size += sum(call.values[index].nbytes for index in self._copied(kind, call))
        kind.refused = _refusal(call, size)
        if kind.refused is not None:
            return results
        with recorder.turn() as stream:
            try:
                recording = self._recorded(recorder, kind, call, stream, size)
            except (NotRecorded, torch.OutOfMemoryError) as error:
                kind.drop()
                self.failed(error)
                return results
            self.recorded += 1
            if recorder.seconds(recording.replay) > WORTH * launching:
                kind.refused = "its kernels take longer than their launches"
                kind.drop()
                return results
            kind.recordings = [*kind.recordings, recording][-LENT_AT_ONCE:]
            self._forget()
            return recording.results(recorder)

    def _copied(self, kind: SweepKind, call: SweepCall) -> list[int]:
        """Indices of the inputs that are copied."""
        indices = {*self.others, *(self.fixed[slot] for slot in kind.moving)} - {*call.borrowed}
        return sorted(index for index in indices if call.values[index] is not None)

    def _recorded(self, recorder: Recorder, kind: SweepKind, call: SweepCall, stream: int, size: int) -> SweepRecording:
        """A recording of a call."""
        if not kind.memory:
            copied = self._copied(kind, call)
            with lasting(recorder):
                kind.hold(copied, [aligned_like(call.values[index]) for index in copied])
        kind.copy(recorder, call)
        length, batch, reads = call.length, call.batch, list(call.values)
        for index, memory in zip(kind.copied, kind.memory, strict=True):
            reads[index] = memory
        present: list[list[bool]] = []

        def run(*reads: Tensor | None) -> list[Tensor]:
            parts = self.function(length, batch, *reads)
            present[:] = [[one is not None for one in part] for part in parts]
            return _apart([one for part in parts for one in part if one is not None], reads)

        with lasting(recorder):
            replay, found = recorder.record(lambda *reads: len(run(*reads)), run, reads)
        rest = iter(found)
        outputs, befores = ([next(rest) if there else None for there in part] for part in present)
        handed: dict[int, Tensor] = {}
        places: list[int | Tensor | None] = []
        for index, one in enumerate(outputs):
            if one is None or index in self.lends:
                places.append(one)
            else:
                handed[id(one)] = one
                places.append([*handed].index(id(one)))
        return SweepRecording(replay, call.reads, (places, [*befores]), [*handed.values()], stream, size)

    def _forget(self) -> None:
        """Drop the recordings of calls of long ago where there are too many."""
        kinds = list(self.kinds.values())
        while sum(kind.bytes for kind in kinds) > 2 * MEMORY_BYTES and len(kinds) > 1:
            kinds.pop(0).drop()


def captured_sweep(
    function: Callable[..., Results], inputs: Sequence[Port], outputs: Sequence[Port], device: torch.device
) -> CapturedSweep | None:
    """A sweep, to be recorded; None on a device that has no recorder."""
    return CapturedSweep(function, inputs, outputs) if recordings.can_capture(device) else None


def _apart(results: Sequence[Tensor], reads: Values) -> list[Tensor]:
    """Results in memory without gaps that is none of the inputs'."""
    given = {one.untyped_storage()._cdata for one in reads if one is not None}
    apart: dict[int, Tensor] = {}
    for one in results:
        if id(one) not in apart:
            is_dense = one.is_contiguous() or torch.empty_like(one, device="meta").stride() == one.stride()
            is_own = one.untyped_storage()._cdata not in given
            apart[id(one)] = one if is_dense and is_own else one.clone(memory_format=torch.contiguous_format)
    return [apart[id(one)] for one in results]


def _refusal(call: SweepCall, size: int) -> str | None:
    """Why a call is not recorded that copies and computes so many bytes; None where it is."""
    given = [value for value in call.values if value is not None]
    if not all(is_plain(value, given[0].device) for value in given):
        return f"it reads what is no ordinary tensor on {given[0].device}"
    return f"its values are more than {MEMORY_BYTES >> 10:,} KiB" if size > MEMORY_BYTES else None
