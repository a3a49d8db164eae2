"""`named(value, "r")`: names for values inside a step, at no cost, heard by whoever listens while the step runs.

Knows nothing of tracing or recording: both are listeners.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor

Value = TypeVar("Value", bound=Tensor)


class _Listeners(threading.local):
    def __init__(self) -> None:
        self.stack: list[dict[str, Tensor]] = []


_listeners = _Listeners()


def named(value: Value, name: str) -> Value:
    """The value itself, known as `name` to pictures, `explain()` and `lp.record`.

    >>> rate = named(torch.tanh(h), "r")   # doctest: +SKIP
    """
    for heard in _listeners.stack:
        heard[name] = value
    return value


@contextlib.contextmanager
def listening() -> Iterator[dict[str, Tensor]]:
    """Collect what is named while the block runs; the last value of a name stands."""
    heard: dict[str, Tensor] = {}
    _listeners.stack.append(heard)
    try:
        yield heard
    finally:
        _listeners.stack.remove(heard)
