"""A recorder for tests without a GPU: it runs the recorded Python again, in the memory that a CUDA graph would use."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from leporello.engine.gpu.graphs import recordings
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recording
from leporello.engine.targets import STEPWISE


@dataclass
class PythonRecorder:
    """Counts what it does.

    recorded   the recordings that were made
    replayed   how often one ran
    refuses    what it says to every recording; None where it records
    busy       whether somebody else is recording
    takes      the seconds that everything takes on the device, where it takes one on the host
    measured   how often that was asked
    spoils     whether each replay fills the results of all other recordings with NaN, as shared memory may
    kept       results of each recording
    """

    recorded: int = 0
    replayed: int = 0
    refuses: str | None = None
    busy: bool = False
    takes: float = 0.0
    measured: int = 0
    spoils: bool = False
    kept: weakref.WeakKeyDictionary[Recording, Sequence[Tensor]] = field(
        default_factory=weakref.WeakKeyDictionary, repr=False
    )
    depth: int = field(default=0, repr=False)
    lock: Any = field(default_factory=threading.RLock, repr=False)

    def is_busy(self) -> bool:
        return self.busy or self.depth == 2

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self.lock:
            assert self.depth == 0
            self.depth = 1
            try:
                yield
            finally:
                self.depth = 0

    @contextmanager
    def memory(self) -> Iterator[None]:
        assert self.depth == 1
        self.depth = 2
        try:
            yield
        finally:
            self.depth = 1

    def record(
        self, first: Callable[..., Any], run: Callable[..., Sequence[Tensor]], reads: Sequence[Any] = ()
    ) -> tuple[Recording, Sequence[Tensor]]:
        assert self.depth == 2
        if self.refuses is not None:
            raise NotRecorded(self.refuses)
        first(*reads)
        self.recorded += 1
        results = run(*reads)
        addresses = [read if read is None else unowned(read) for read in reads]

        def replay() -> None:
            assert self.depth == 1
            self.replayed += 1
            if self.spoils:
                self._spoil(replay)
            self.depth = 2  # what runs again records nothing
            with torch.inference_mode(False), torch.no_grad():
                for memory, value in zip(results, run(*addresses), strict=True):
                    memory.copy_(value)
            self.depth = 1

        self.kept[replay] = results
        return replay, results

    def _spoil(self, replay: Recording) -> None:
        for other, results in self.kept.items():
            for result in results if other is not replay else ():
                if result.is_floating_point():
                    result.data.fill_(float("nan"))

    def copy(self, to: Sequence[int], source: Sequence[int], sizes: Sequence[int]) -> None:
        assert self.depth == 1
        for pieces in zip(to, source, sizes, strict=True):
            ctypes.memmove(*pieces)

    def seconds(self, run: Callable[[], Any]) -> tuple[float, float]:
        with self.lock:  # another thread may have its turn, but not this one
            assert self.depth == 0
            self.measured += 1
        run()
        return 1.0, self.takes


def unowned(value: Tensor) -> Tensor:
    """The memory of a contiguous tensor without a reference to it, as a CUDA graph has it."""
    size = value.numel() * value.itemsize
    if not size:
        return value.new_empty(value.shape)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=value.dtype).as_strided(value.shape, value.stride())


def installed(monkeypatch: pytest.MonkeyPatch) -> PythonRecorder:
    """A recorder that all insides on the CPU use, which `stepwise` prepares from now on, in windows as on a GPU."""
    recorder = PythonRecorder()
    monkeypatch.setitem(STEPWISE.windows, "cpu", STEPWISE.default_windows)  # type: ignore[arg-type]
    monkeypatch.setattr(recordings, "can_capture", lambda device: True)
    monkeypatch.setattr(recordings, "recorder_of", lambda device: recorder)
    return recorder
