"""A function in a thread of its own, where nothing that is switched on in this one is: no trace, no autocast.

What switches torch's operators to something else belongs to a thread. Knows threads; knows nothing of what runs there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def aside(function: Callable[[], Result]) -> Result:
    """Run it there and wait; its error is raised here."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend((True, function()))
        except BaseException as error:
            found.extend((False, error))

    thread = threading.Thread(target=run, name="leporello")
    thread.start()
    thread.join()
    worked, result = found
    if not worked:
        raise result
    return result
