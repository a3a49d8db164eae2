"""A bar that shows how far a run is, on a terminal, where rich is installed. Elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.cases import Case

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
except ModuleNotFoundError:
    Progress = None

Announce = Callable[[Case], None]


@contextmanager
def bar(name: str, begun: int, whole: int) -> Iterator[Announce]:
    """A function to be told of each case of a suite before it is measured; the bar is gone when tables are printed.

    begun, whole   cases of the run: those of the suites before, and all
    """
    if Progress is None or not sys.stderr.isatty():
        yield lambda case: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as drawn:
        task = drawn.add_task(name, total=whole, completed=begun - 1)

        def announce(case: Case) -> None:
            drawn.update(task, advance=1, description=f"{name}: {case.name}")

        yield announce
