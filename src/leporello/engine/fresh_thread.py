"""Run a function in a fresh thread, outside of the tracing modes and the autocast of the current thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils._python_dispatch import _disable_current_modes

Result = TypeVar("Result")


def in_fresh_thread(function: Callable[[], Result]) -> Result:
    """The function's result, computed in a new thread; an error that it raises is raised in the current thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, function()))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=run, name="leporello")
    with _disable_current_modes():  # torch.export has modes that are those of all threads
        thread.start()
        thread.join()
    worked, result = outcome
    if not worked:
        raise result
    return result
