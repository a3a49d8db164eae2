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

    def turn(self) -> AbstractContextManager[None]:
        """A context in which no other thread or stream uses the memory of the recordings.

        They share it: a replay overwrites whatever another recording, or memory made after it, has there. So nothing
        but parameters' own memory is relied on from one turn to the next.
        """

    def memory(self) -> AbstractContextManager[None]:
        """A context in which new tensors are in memory that recordings may refer to; inside of `turn`, once."""

    def record(
        self, first: Callable[..., Any], run: Callable[..., Sequence[Tensor]], reads: Sequence[Any] = ()
    ) -> tuple[Recording, Sequence[Tensor]]:
        """Record what `run` does; inside of `turn` and `memory`.

        Returns the recording, and what `run` returned: every replay leaves new values in this memory, for as long as
        the turn lasts.

        `first` does the same, for one step where there are several, and is run before. `reads` are the arguments of
        both: a recording keeps their addresses, and not the tensors.

        Raises `NotRecorded` where that cannot be done.
        """

    def copy(self, to: Sequence[int], source: Sequence[int], sizes: Sequence[int]) -> None:
        """Copy memory from addresses to addresses, in bytes; inside of `turn`."""

    def seconds(self, run: Callable[[], Any]) -> tuple[float, float]:
        """How long operators take on the host, and on the device from their first launch on; not inside of `turn`."""


class NotRecorded(Exception):
    """Operators cannot be recorded; the text says why."""
