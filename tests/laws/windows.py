"""Sweeps in small windows, so that short sequences have several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from leporello.engine.target import WindowSizes
from leporello.engine.targets import TARGETS


@contextmanager
def windows_of(rows: int) -> Iterator[None]:
    """Within, every target goes through windows of at most so many rows on the CPU."""
    with ExitStack() as stack:
        for target in TARGETS.values():
            sizes = WindowSizes(rows, target.windows_on("cpu").min_count, target.windows_on("cpu").min_rows)
            stack.enter_context(mock.patch.dict(target.windows, cpu=sizes))  # type: ignore[arg-type]
        yield
