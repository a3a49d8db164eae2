"""Where the time of a first call goes: named phases, each without those inside of it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Recording(threading.local):
    """The seconds of each phase while `recorded_phases` runs in this thread, and the phases that are open."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] | None = None
        self.open: list[str] = []
        self.since = 0.0

    def switch(self, now: float) -> None:
        """Add the time since the last switch to the innermost phase."""
        if self.seconds is not None and self.open:
            self.seconds[self.open[-1]] = self.seconds.get(self.open[-1], 0.0) + now - self.since
        self.since = now


_recording = _Recording()


@contextmanager
def timed_phase(name: str) -> Iterator[None]:
    """What the block does belongs to this phase; nothing is recorded outside of `recorded_phases`."""
    if _recording.seconds is None:
        yield
        return
    _recording.switch(time.perf_counter())
    _recording.open.append(name)
    try:
        yield
    finally:
        _recording.switch(time.perf_counter())
        _recording.open.pop()


@contextmanager
def recorded_phases(rest: str) -> Iterator[dict[str, float]]:
    """The seconds of each phase of the block, in a dict that is complete at its end; a block inside of it adds to it.

    rest   the name of what belongs to no phase
    """
    if _recording.seconds is not None:
        yield _recording.seconds
        return
    seconds = _recording.seconds = {}
    try:
        with timed_phase(rest):
            yield seconds
    finally:
        _recording.seconds = None


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """No garbage is collected in the block.

    With torch loaded a full collection takes a tenth of a second, and tracing, which allocates much and frees little,
    would begin several. Where memory is measured, garbage that is freed would look as if less were in use. If the block
    leaves so much that a collection would follow it at once, what it leaves counts as old.
    """
    was_enabled = gc.isenabled()
    before = gc.get_count()[0]
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            much = gc.get_count()[0] - before > gc.get_threshold()[0] > 0
            if much and not gc.get_freeze_count():  # counting takes long; frozen objects of the user's would be thawed
                gc.freeze()
                gc.unfreeze()  # moves all objects to the oldest generation, without looking at them
            gc.enable()
