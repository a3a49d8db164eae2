"""A call with room for many frames behind it.

CPython 3.11 keeps frames in pieces of 16 KB, and gives a piece back as soon as the last frame in it returns. A loop
that happens to stand at the end of one asks the system for memory at every call it makes: a fifth of these tests' time
went there. A frame that is larger than a piece gets one of its own, larger than itself, and the rest serves those
behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLACES = 70_000  # of the frame: half a megabyte and a little


def _made() -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    names = " = ".join(f"v{number}" for number in range(PLACES))  # a frame has a place for each of its names
    exec(f"def roomy(call, named):\n if call is None: {names} = None\n return call(**named)", scope)
    found: Callable[..., Any] = scope["roomy"]
    return found


roomy = _made()
