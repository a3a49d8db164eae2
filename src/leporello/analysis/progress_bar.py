"""A progress bar for work that turns out to be long, where there is a terminal to show it and `rich` to draw it.

Knows nothing of the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

One = TypeVar("One")

PATIENCE_SECONDS = 2.0


def watched(work: Sequence[One], words: str) -> Iterator[One]:
    """The pieces of work, one by one; after two seconds a bar says how many are done."""
    began = time.monotonic()
    for done, piece in enumerate(work):
        if time.monotonic() - began > PATIENCE_SECONDS and sys.stderr.isatty():
            yield from _with_bar(work, done, words)
            return
        yield piece


def _with_bar(work: Sequence[One], done: int, words: str) -> Iterator[One]:
    try:
        from rich.console import Console  # here, because nothing else needs it
        from rich.progress import Progress
    except ImportError:
        yield from work[done:]
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=len(work), completed=done)
        for piece in work[done:]:
            yield piece
            bar.advance(task)
