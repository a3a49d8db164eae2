"""A recorder for tests without a GPU: it runs the recorded Python again, in the memory that a CUDA graph would use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from leporello.engine.gpu.graphs import captured_steps
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recording
from leporello.engine.targets import STEPWISE


@dataclass
class PythonRecorder:
    """Counts what it does.

    recorded   the recordings that were made
    replayed   how often one ran
    refuses    what it says to every recording; None where it records
    busy       whether somebody else is recording
    """

    recorded: int = 0
    replayed: int = 0
    refuses: str | None = None
    busy: bool = False
    depth: int = field(default=0, repr=False)

    def is_busy(self) -> bool:
        return self.busy

    @contextmanager
    def turn(self) -> Iterator[None]:
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

    def record(self, first: Callable[[], None], run: Callable[[], None]) -> Recording:
        assert self.depth == 2
        if self.refuses is not None:
            raise NotRecorded(self.refuses)
        first()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad():
                run()

        return replay


def installed(monkeypatch: pytest.MonkeyPatch) -> PythonRecorder:
    """A recorder that all insides on the CPU use, which `stepwise` prepares from now on, in windows as on a GPU."""
    recorder = PythonRecorder()
    monkeypatch.setitem(STEPWISE.windows, "cpu", STEPWISE.default_windows)  # type: ignore[arg-type]
    monkeypatch.setattr(captured_steps, "can_capture", lambda device: True)
    monkeypatch.setattr(captured_steps, "recorder_of", lambda device: recorder)
    return recorder
