"""An error while a run is being written tells what is left to go on from. Knows run folders and errors alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leporello.errors import LeporelloError
from leporello.language.run import Run


@contextmanager
def keeping(run: Run | None, update: int | None) -> Iterator[None]:
    """update   after which the last checkpoint was written; None: there is none"""
    try:
        yield
    except LeporelloError as error:
        if run is None or update is None:
            raise
        details = {
            **error.details,
            "kept": f"the last checkpoint, after {update:,} updates",
            "tries": f"make room or mend it, then leporello resume {run.path}",
        }
        raise LeporelloError(error.what, **details) from error
