"""`CapturedSweep`: a whole sweep of a short call recorded once and replayed, so that Python launches nothing of it.

What a call's kernels and products compute takes less time than Python takes to launch them, where the call is short.
The second call of a kind therefore records all that its sweep launches. Parameters are read where they are. Everything
else that a call reads is copied into the recording's memory, and its results are copied out of it, in one launch each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.engine.functorch_levels import is_transforming
from leporello.engine.gpu.graphs import recordings
from leporello.engine.gpu.graphs.captured_memory import ALIGNMENT, aligned_like, is_plain
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recorder
from leporello.engine.gpu.graphs.recordings import Recordings, lasting, switches
from leporello.engine.gpu.graphs.sweep_recording import Results, SweepCall, SweepKind, SweepRecording
from leporello.loop.port import Port, Role
from leporello.loop.sizes import Size

LONGEST = 4096  # steps of a call; the launches of a longer one take a small part of its time
MEMORY_BYTES = 64 << 20  # of what a recording copies and computes, at most; twice that of all recordings of a sweep
WORTH = 3  # a sweep may take so many times as long on the device as Python takes for its launches
FIRST_ONES = 2 * recordings.KINDS  # recordings: each kind has a second one when its parameters move
REPLAYS = 16  # of each recording, on average, beyond the first ones: else calls are too different to record them

PLAIN = {Tensor, nn.Parameter, type(None)}

Values = Sequence[Tensor | None]


class CapturedSweep(Recordings[SweepKind]):
    """The recordings of one sweep.

    function   that runs it: (length, batch, *values) -> outputs, states before each step
    fixed      indices of its inputs that are parameters, buffers and constants
    others     of those that are not
    sized      of those whose shape depends on free lengths, and not on length and batch alone
    complex    of those that torch may hold as the conjugate of what is in memory
    tried      recordings that were measured, and made where that showed them to be worth it
    replayed   how often one ran
    """

    def __init__(self, function: Callable[..., Results], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        super().__init__()
        self.function = function
        self.fixed = [i for i, port in enumerate(inputs) if port.role is Role.INVARIANT]
        self.others = [i for i in range(len(inputs)) if i not in self.fixed]
        self.sized = [i for i, port in enumerate(inputs) if any(isinstance(size, Size) for size in port.shape)]
        self.complex = [i for i, port in enumerate(inputs) if port.dtype.is_complex]
        self.tried = self.replayed = 0

    @property
    def about(self) -> str:
        """How the sweep is launched, for `explain`."""
        if self.missing is not None:
            return self.missing
        kinds = list(self.kinds.values())
        count = sum(kind.recording is not None for kind in kinds)
        if count:
            return f"one CUDA graph, for {count} kind{'s' * (count > 1)} of calls"
        refused = next((kind.refused for kind in kinds if kind.refused), None)
        if refused is not None:
            return f"not captured in a CUDA graph: {refused}"
        return f"captured in a CUDA graph by the second call of a kind, up to {LONGEST:,} steps"

    def run(self, length: int, batch: int, values: Sequence[Any]) -> Results | None:
        """The sweep of a call by a recording; None where Python has to launch it.

        values   as the function takes them
        """
        if length > LONGEST or not {*map(type, values)} <= PLAIN or is_transforming():
            return None
        device = next((value.device for value in values if value is not None), None)
        recorder = None if device is None else self.recorder(device)
        if recorder is None or any([values[i] is not None and values[i].is_conj() for i in self.complex]):  # noqa: C419
            return None
        if not all([value is None or value.is_contiguous() for value in values]):  # noqa: C419 - half the time
            values = [None if value is None else value.contiguous() for value in values]
        addresses = [-1 if value is None else value.data_ptr() for value in values]
        alignments = [at if at < 0 else at % ALIGNMENT for at in addresses]
        shapes = [values[i].shape for i in self.sized if values[i] is not None]
        key = (device, length, batch, *alignments, *shapes, switches())
        known = self.kinds.get(key)
        if known is not None and known.refused is not None:
            return None
        call = SweepCall(length, batch, values, addresses)
        with recorder.turn():
            kind = self._kind(key, call)
            if kind is None:
                return None
            if kind.recording is not None:
                kind.copy(recorder, call)
                self.replayed += 1
                return kind.recording.run(recorder)
            if kind.refused is not None or not self._is_worth_it():
                return None
        return self._first(recorder, kind, call)

    def _kind(self, key: Any, call: SweepCall) -> SweepKind | None:
        """The kind of a call; None for the first of its kind."""
        fixed = self._fixed(call)
        kind = self.kind(key, lambda: SweepKind(fixed))
        if kind is not None and kind.note(fixed):
            kind.drop()
        return kind

    def _fixed(self, call: SweepCall) -> list[int]:
        """The addresses of the values that are read where they are."""
        return [call.addresses[index] for index in self.fixed]

    def _is_worth_it(self) -> bool:
        """Whether recordings have been replayed often enough that another one is made."""
        return self.tried < FIRST_ONES or self.replayed >= REPLAYS * self.tried

    # ---- recordings

    def _first(self, recorder: Recorder, kind: SweepKind, call: SweepCall) -> Results:
        """Run a call by the function, and record it; its results are those of the recording where there is one.

        They are aligned as those of later calls are, on which the kind of the backward sweep's call depends.
        """
        results = self.function(call.length, call.batch, *call.values)
        size = sum(value.nbytes for part in results for value in part if value is not None)
        size += sum(call.values[index].nbytes for index in self._copied(kind, call))
        refused = _refusal(call, size) or self._slow(recorder, call)
        with recorder.turn():
            if kind.recording is not None or kind.addresses != self._fixed(call):  # by a call of another thread
                return results
            kind.refused = refused
            if refused is not None:
                return results
            try:
                kind.recording = self._recorded(recorder, kind, call, size)
            except (NotRecorded, torch.OutOfMemoryError) as error:
                kind.drop()
                self.failed(error)
                return results
            results = kind.recording.run(recorder)
            self._forget()
            return results

    def _slow(self, recorder: Recorder, call: SweepCall) -> str | None:
        """Why a recording of a call would not be faster; None where it would be.

        It is measured without one: where the device is slower than the launches, it does not wait for them.
        """
        self.tried += 1
        try:
            host, device = recorder.seconds(lambda: self.function(call.length, call.batch, *call.values))
        except torch.OutOfMemoryError:
            return "there is no memory to run it a second time"
        return "its kernels take longer than their launches" if device > WORTH * host else None

    def _copied(self, kind: SweepKind, call: SweepCall) -> list[int]:
        """Indices of the inputs that are copied."""
        indices = {*self.others, *(self.fixed[slot] for slot in kind.moving)}
        return sorted(index for index in indices if call.values[index] is not None)

    def _recorded(self, recorder: Recorder, kind: SweepKind, call: SweepCall, size: int) -> SweepRecording:
        """A recording of a call."""
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
        results = {id(one): one for one in found}  # one that is returned several times is copied once
        order = list(results)
        rest = iter(found)
        outputs, befores = ([order.index(id(next(rest))) if there else None for there in part] for part in present)
        return SweepRecording(replay, [*results.values()], (outputs, befores), size)

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
