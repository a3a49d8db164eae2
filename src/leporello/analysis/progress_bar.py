"""A progress bar for work that turns out to be long, shown on a terminal where `rich` is installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

PATIENCE_SECONDS = 2.0  # before a bar appears


def with_progress_bar(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield the items one by one; after two seconds a bar on standard error says how many are done."""
    start = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - start > PATIENCE_SECONDS and sys.stderr.isatty():
            yield from _with_bar(items, done, description)
            return
        yield item


def _with_bar(items: Sequence[Item], done: int, description: str) -> Iterator[Item]:
    """Yield the items from `done` on below a bar; without `rich` there is no bar."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield from items[done:]
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=len(items), completed=done)
        for item in items[done:]:
            yield item
            bar.advance(task)
