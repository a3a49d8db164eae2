"""`CapturedSweep`: a whole sweep of a short call recorded once and replayed, so that Python launches nothing of it.

What a call's kernels and products compute takes less time than Python takes to launch them, where the call is short.
The second call of a kind therefore records all that its sweep launches. Parameters are read where they are. Everything
else that a call reads is copied into the recording's memory, and its results are copied out of it, in one launch each.
What the forward sweep saves for the backward sweep alone is lent instead: it stays where it is, and the recording is
not replayed while somebody has it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leporello.engine.functorch_levels import is_transforming
from leporello.engine.gpu.graphs import recordings
from leporello.engine.gpu.graphs.captured_memory import ALIGNMENT, aligned_like, is_plain
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recorder, Recording
from leporello.engine.gpu.graphs.recordings import FixedValues, Recordings, lasting, switches
from leporello.loop.port import Port, Role

LONGEST = 256  # steps of a call; the launches of a longer one take a small part of its time
MEMORY_BYTES = 64 << 20  # of what a recording copies and computes, at most; twice that of all recordings of a sweep
LENT_AT_ONCE = 3  # recordings of one kind, so that as many calls may wait for their gradient
WORTH = 4  # a recording may take so many times as long on the device as Python takes for its launches
REPLAYS = 16  # of each recording, on average, beyond the first kinds: else calls are too different to record them

PLAIN = {Tensor, nn.Parameter}

Values = Sequence[Tensor | None]
Results = tuple[list[Tensor], list[Tensor]]

_lent: set[int] = set()  # addresses of what recordings lend


@dataclass(eq=False)
class SweepRecording:
    """One recording, and what it leaves in its memory.

    replay     runs it
    reads      addresses of what the forward sweep has lent to it
    places     of outputs and states before each step: an index among `copied`, or what is lent
    copied     results that are copied out
    stream     of its last run: what it has lent is read there
    bytes      of what it copies and computes
    """

    replay: Recording
    reads: tuple[int, ...]
    places: tuple[list[int | Tensor | None], list[int | Tensor | None]]
    copied: list[Tensor]
    stream: int
    bytes: int

    def __post_init__(self) -> None:
        lent = [place for part in self.places for place in part if isinstance(place, Tensor)]
        self.addresses, self.sizes = [one.data_ptr() for one in self.copied], [one.nbytes for one in self.copied]
        storages = {storage._cdata: storage for storage in (one.untyped_storage() for one in lent)}
        self._users = [(storage, _users(storage)) for storage in storages.values()]
        lent_at = {one.data_ptr() for one in lent}
        _lent.update(lent_at)
        weakref.finalize(self, _lent.difference_update, lent_at).atexit = False

    @property
    def is_free(self) -> bool:
        """Whether nobody has what it lends."""
        return all(_users(storage) == alone for storage, alone in self._users)

    def run(self, recorder: Recorder, stream: int) -> Results:
        """Replay it, with a call's values in its memory; returns what it has computed."""
        if self._users and stream != self.stream:
            recorder.follow(self.stream)
        self.stream = stream
        self.replay()
        return self.results(recorder)

    def results(self, recorder: Recorder) -> Results:
        """What the last run has computed."""
        copies = [torch.empty_like(one) for one in self.copied]
        recorder.copy([one.data_ptr() for one in copies], self.addresses, self.sizes)
        outputs, befores = (
            [copies[place] if isinstance(place, int) else None if place is None else place.detach() for place in part]
            for part in self.places
        )
        return outputs, befores  # type: ignore[return-value]


@dataclass(eq=False)
class SweepKind(FixedValues):
    """Calls of one kind: of the same length, batch, layouts and switches of torch.

    refused     why these calls are not recorded
    copied      indices of the values that are copied, in the order of `memory`
    memory      that they are copied to
    recordings  the last made one behind the others
    """

    refused: str | None = None
    copied: list[int] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    recordings: list[SweepRecording] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.recordings)

    def drop(self) -> None:
        self.copied, self.memory, self.recordings = [], [], []

    def copy(self, recorder: Recorder, addresses: Sequence[int]) -> None:
        """Copy a call's values to the recordings' memory."""
        sources = [addresses[index] for index in self.copied]
        recorder.copy([one.data_ptr() for one in self.memory], sources, [one.nbytes for one in self.memory])


class CapturedSweep(Recordings[SweepKind]):
    """The recordings of one sweep.

    function   that runs it: (length, batch, *values) -> outputs, states before each step
    fixed      indices of its inputs that are the same at every step and for all rows
    saved      of those that the forward sweep may have lent
    lends      of the outputs that are saved for the backward sweep
    """

    def __init__(self, function: Callable[..., Results], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        super().__init__()
        self.function = function
        self.fixed = [i for i, port in enumerate(inputs) if port.kind == "invariant" and port.role is not Role.GRADIENT]
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
        if length > LONGEST or not {type(value) for value in values if value is not None} <= PLAIN or is_transforming():
            return None
        device = next(value.device for value in values if value is not None)
        recorder = self.recorder(device)
        if recorder is None:
            return None
        values = list(values)
        for index in self.others:
            if values[index] is not None and not values[index].is_contiguous():
                values[index] = values[index].contiguous()
        addresses = [0 if value is None else value.data_ptr() for value in values]
        lent = [index for index in self.saved if addresses[index] in _lent]
        layout = [None if value is None else at % ALIGNMENT for value, at in zip(values, addresses, strict=True)]
        key = (device, length, batch, *layout, *lent, switches())
        reads = tuple(addresses[index] for index in lent)
        with recorder.turn() as stream:
            kind = self._kind(key, addresses)
            if kind is None or kind.refused is not None:
                return None
            own = [one for one in kind.recordings if one.reads == reads]
            free = next((one for one in own if one.is_free), None)
            if free is not None:
                kind.copy(recorder, addresses)
                self.replayed += 1
                return free.run(recorder, stream)
            if len(own) == LENT_AT_ONCE or not self._is_worth_it():
                return None
        return self._first(recorder, kind, length, batch, values, addresses, lent)

    def _kind(self, key: Any, addresses: Sequence[int]) -> SweepKind | None:
        """The kind of a call; None for the first of its kind."""
        fixed = [addresses[index] for index in self.fixed]
        kind = self.kind(key, lambda: SweepKind(fixed))
        if kind is not None and kind.note(fixed):
            kind.drop()
        return kind

    def _is_worth_it(self) -> bool:
        """Whether recordings have been replayed often enough that another one is made."""
        return self.recorded < recordings.KINDS * LENT_AT_ONCE or self.replayed >= REPLAYS * self.recorded

    # ---- recordings

    def _first(
        self,
        recorder: Recorder,
        kind: SweepKind,
        length: int,
        batch: int,
        values: Values,
        addresses: Sequence[int],
        lent: Sequence[int],
    ) -> Results:
        """Run a call by the function, and record it; its results are those of the recording where that is kept."""
        begin = time.perf_counter()
        results = self.function(length, batch, *values)
        launching = time.perf_counter() - begin
        given, found = _present(values), _present([value for part in results for value in part])
        if not all(is_plain(value, given[0].device) for value in given):
            kind.refused = f"it reads what is no ordinary tensor on {given[0].device}"
        size = sum(value.nbytes for value in found)
        size += sum(value.nbytes for value in _present([values[index] for index in self._copied(kind, lent)]))
        if size > MEMORY_BYTES:
            kind.refused = f"its values are more than {MEMORY_BYTES >> 10:,} KiB"
        if kind.refused is not None:
            return results
        with recorder.turn() as stream:
            try:
                recording = self._recorded(recorder, kind, length, batch, values, addresses, lent, stream, size)
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

    def _copied(self, kind: SweepKind, lent: Sequence[int]) -> list[int]:
        """Indices of the inputs that are copied."""
        moving = [self.fixed[slot] for slot in sorted(kind.moving)]
        return sorted(index for index in (*self.others, *moving) if index not in lent)

    def _recorded(
        self,
        recorder: Recorder,
        kind: SweepKind,
        length: int,
        batch: int,
        values: Values,
        addresses: Sequence[int],
        lent: Sequence[int],
        stream: int,
        size: int,
    ) -> SweepRecording:
        """A recording of a call."""
        if not kind.memory:
            kind.copied = [index for index in self._copied(kind, lent) if values[index] is not None]
            with lasting(recorder):
                kind.memory = [aligned_like(values[index]) for index in kind.copied]  # type: ignore[arg-type]
        kind.copy(recorder, addresses)
        reads = list(values)
        for index, memory in zip(kind.copied, kind.memory, strict=True):
            reads[index] = memory
        counts: list[int] = []
        missing: list[list[bool]] = []

        def run(*reads: Tensor | None) -> list[Tensor]:
            parts = self.function(length, batch, *reads)
            missing[:] = [[one is None for one in part] for part in parts]
            counts[:] = map(len, parts)
            return _apart([one for part in parts for one in part if one is not None], reads)

        with lasting(recorder):
            replay, found = recorder.record(lambda *reads: len(run(*reads)), run, reads)
        given = iter(found)
        outputs, befores = ([None if gone else next(given) for gone in part] for part in missing)
        copied: dict[int, Tensor] = {}
        places: list[int | Tensor | None] = []
        for index, one in enumerate(outputs):
            if one is None or index in self.lends:
                places.append(one)
            else:
                copied.setdefault(id(one), one)
                places.append(list(copied).index(id(one)))
        reads_of_lent = tuple(addresses[index] for index in lent)
        del outputs, given, found, reads
        return SweepRecording(replay, reads_of_lent, (places, befores), [*copied.values()], stream, size)  # type: ignore[arg-type]

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


def _present(values: Values) -> list[Tensor]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def _users(storage: torch.UntypedStorage) -> int:
    """How many tensors, and other holders, a storage has."""
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count
