"""`Recorder`: what records operators on a device, so that they run again without Python: CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

Recording = Callable[[], None]


class Recorder(Protocol):
    """What records operators on a device: CUDA graphs, or in tests Python calls."""

    def is_busy(self) -> bool:
        """Whether operators of this thread have to run themselves now, because others watch them."""

    def turn(self) -> AbstractContextManager[None]:
        """A context in which no other thread or stream uses the memory of the recordings."""

    def memory(self) -> AbstractContextManager[None]:
        """A context in which new tensors are in memory that recordings may refer to; inside of `turn`, once."""

    def record(self, first: Callable[[], None], run: Callable[[], None]) -> Recording:
        """Record what `run` does; inside of `turn` and `memory`.

        `first` does the same for one step, and is run before.

        Raises `NotRecorded` where that cannot be done.
        """


class NotRecorded(Exception):
    """Operators cannot be recorded; the text says why."""
