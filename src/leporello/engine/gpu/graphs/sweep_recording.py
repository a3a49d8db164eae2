"""`SweepRecording`: a recorded sweep, with its memory; `SweepKind`: that of one kind of calls.

Recordings share memory (`recorder.py`): any value in it may be overwritten by the next replay of another one. So every
call copies its values in and its results out, within one turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leporello.engine.gpu.graphs.recorder import Recorder, Recording
from leporello.engine.gpu.graphs.recordings import FixedValues

Results = tuple[list[Tensor], list[Tensor]]
Places = list[int | None]


@dataclass(frozen=True)
class SweepCall:
    """A call of a sweep.

    values      of its inputs; None for a state of zeros
    addresses   of the values; -1 for None
    """

    length: int
    batch: int
    values: Sequence[Any]
    addresses: Sequence[int]


@dataclass(eq=False)
class SweepRecording:
    """One recording, and what it leaves in its memory.

    replay   runs it
    copied   results, which are copied out
    places   of outputs and states before each step: indices among `copied`
    bytes    of what it copies and computes
    """

    replay: Recording
    copied: list[Tensor]
    places: tuple[Places, Places]
    bytes: int

    def __post_init__(self) -> None:
        self.addresses, self.sizes = [one.data_ptr() for one in self.copied], [one.nbytes for one in self.copied]

    def run(self, recorder: Recorder) -> Results:
        """Replay it, with a call's values in its memory; returns what it has computed."""
        self.replay()
        copies = [torch.empty_like(one) for one in self.copied]
        recorder.copy([one.data_ptr() for one in copies], self.addresses, self.sizes)
        outputs, befores = ([None if place is None else copies[place] for place in part] for part in self.places)
        return outputs, befores  # type: ignore[return-value]


@dataclass(eq=False)
class SweepKind(FixedValues):
    """Calls of one kind: of the same length, batch, layouts and switches of torch.

    refused     why these calls are not recorded
    copied      indices of the values that are copied, in the order of `memory`
    memory      that they are copied to, with its addresses and sizes
    recording   None before it is made
    """

    refused: str | None = None
    copied: list[int] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    to: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    recording: SweepRecording | None = None

    @property
    def bytes(self) -> int:
        return 0 if self.recording is None else self.recording.bytes

    def drop(self) -> None:
        self.recording = None
        self.hold([], [])

    def hold(self, copied: list[int], memory: list[Tensor]) -> None:
        """Have memory for these values."""
        self.copied, self.memory = copied, memory
        self.to, self.sizes = [one.data_ptr() for one in memory], [one.nbytes for one in memory]

    def copy(self, recorder: Recorder, call: SweepCall) -> None:
        """Copy a call's values to the recording's memory."""
        recorder.copy(self.to, [call.addresses[index] for index in self.copied], self.sizes)
