"""`SweepRecording`: a recorded sweep, with its memory; `SweepKind`: those of one kind of calls."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leporello.engine.gpu.graphs.recorder import Recorder, Recording
from leporello.engine.gpu.graphs.recordings import FixedValues

Results = tuple[list[Tensor], list[Tensor]]

lent: set[int] = set()  # addresses of what recordings lend


@dataclass(frozen=True)
class SweepCall:
    """A call of a sweep.

    values      of its inputs; None for a state of zeros
    addresses   of the values; -1 for None
    borrowed    indices of those that the forward sweep's recording has lent
    """

    length: int
    batch: int
    values: Sequence[Any]
    addresses: Sequence[int]
    borrowed: Sequence[int]

    @property
    def reads(self) -> list[int]:
        """The addresses of what was lent."""
        return [self.addresses[index] for index in self.borrowed]


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
    reads: list[int]
    places: tuple[list[int | Tensor | None], list[int | Tensor | None]]
    copied: list[Tensor]
    stream: int
    bytes: int

    def __post_init__(self) -> None:
        lends = [place for part in self.places for place in part if isinstance(place, Tensor)]
        self.addresses, self.sizes = [one.data_ptr() for one in self.copied], [one.nbytes for one in self.copied]
        self._held = [one.untyped_storage() for one in lends]
        self._storages = [storage._cdata for storage in self._held]
        self._alone = [torch._C._storage_Use_Count(at) for at in self._storages]
        addresses = {one.data_ptr() for one in lends}
        lent.update(addresses)
        weakref.finalize(self, lent.difference_update, addresses).atexit = False

    @property
    def is_free(self) -> bool:
        """Whether nobody has what it lends."""
        count = torch._C._storage_Use_Count
        return [count(at) for at in self._storages] == self._alone

    def run(self, recorder: Recorder, stream: int) -> Results:
        """Replay it, with a call's values in its memory; returns what it has computed."""
        if stream != self.stream and self._held:
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
    memory      that they are copied to, with its addresses and sizes
    recordings  the last made one behind the others
    """

    refused: str | None = None
    copied: list[int] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    to: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    recordings: list[SweepRecording] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.recordings)

    def drop(self) -> None:
        self.recordings = []
        self.hold([], [])

    def hold(self, copied: list[int], memory: list[Tensor]) -> None:
        """Have memory for these values."""
        self.copied, self.memory = copied, memory
        self.to, self.sizes = [one.data_ptr() for one in memory], [one.nbytes for one in memory]

    def copy(self, recorder: Recorder, call: SweepCall) -> None:
        """Copy a call's values to the recordings' memory."""
        recorder.copy(self.to, [call.addresses[index] for index in self.copied], self.sizes)
