"""A bar for work that is counted and said nothing of afterwards. Knows rich; knows nothing of the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def counting(what: str, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A function (done, of how many) that moves a bar; None where nothing is shown."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, of: bar.update(task, completed=done, total=of)
