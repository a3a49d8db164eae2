"""`Recorder`: what records operators on a device, so that they run again without Python: CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

Recording = Callable[[], None]


class Recorder(Protocol):
    """What records operators on a device: CUDA graphs, or in tests Python calls."""

    def is_busy(self) -> bool:
        """Whether operators of this thread have to run themselves now, because others watch them."""

    def turn(self) -> AbstractContextManager[int]:
        """A context in which no other thread or stream uses the memory of the recordings; it gives the stream."""

    def memory(self) -> AbstractContextManager[None]:
        """A context in which new tensors are in memory that recordings may refer to; inside of `turn`, once."""

    def record(
        self, first: Callable[..., Any], run: Callable[..., Sequence[Tensor]], reads: Sequence[Any] = ()
    ) -> tuple[Recording, Sequence[Tensor]]:
        """Record what `run` does; inside of `turn` and `memory`.

        Returns the recording, and what `run` returned: every replay leaves new values in this memory.

        `first` does the same, for one step where there are several, and is run before. `reads` are the arguments of
        both: a recording keeps their addresses, and not the tensors.

        Raises `NotRecorded` where that cannot be done.
        """

    def copy(self, to: Sequence[int], source: Sequence[int], sizes: Sequence[int]) -> None:
        """Copy memory from addresses to addresses, in bytes; inside of `turn`."""

    def follow(self, stream: int) -> None:
        """Let the current stream wait for all that another one has been given, by the number that `turn` gives."""

    def seconds(self, recording: Recording) -> float:
        """How long a recording takes on the device; inside of `turn`."""


class NotRecorded(Exception):
    """Operators cannot be recorded; the text says why."""
