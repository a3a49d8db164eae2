"""How gradient methods are written: `full,truncated:35,random:0.97`.

Knows names and numbers; what a method does with them is its own business.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leporello import gradient
from leporello.errors import ArgumentError, LeporelloError
from leporello.gradient.method import Method

EXAMPLE = "full, truncated:35, random:0.97"


@dataclass(frozen=True)
class Written:
    """How one method is written.

    form     with words for its numbers
    kinds    of the numbers that may follow its name
    least    how many of them must
    make     the method from its numbers
    """

    form: str
    kinds: tuple[type, ...]
    least: int
    make: Callable[..., Method]


METHODS = {
    "full": Written("full", (), 0, gradient.Full),
    "truncated": Written("truncated:STEPS or truncated:STEPS:EVERY", (int, int), 1, gradient.Truncated),
    "random": Written("random or random:KEEP", (float,), 0, gradient.RandomTruncated),
    "checkpointed": Written("checkpointed or checkpointed:EVERY", (int,), 0, gradient.Checkpointed),
    "rtrl": Written("rtrl", (), 0, gradient.RTRL),
    "uoro": Written("uoro", (), 0, gradient.UORO),
}


def methods_of(text: str) -> dict[str, Method]:
    """The methods that a text names, each by what was written.

    >>> methods_of("full,truncated:35:5")
    {'full': Full(), 'truncated:35:5': Truncated(steps=35, every=5)}
    """
    found: dict[str, Method] = {}
    for part in (piece.strip() for piece in text.split(",")):
        if part in found:
            raise ArgumentError(f"the method '{part}' is written twice.", came=text)
        found[part] = _method(part)
    return found


def _method(part: str) -> Method:
    name, *numbers = (piece.strip() for piece in part.split(":"))
    written = METHODS.get(name.lower())
    if written is None:
        near = difflib.get_close_matches(name.lower(), METHODS, n=2)
        raise ArgumentError(
            f"no gradient method is called '{name}'." if name else "a gradient method has no name.",
            nearest=", ".join(near) or None,
            expected=", ".join(METHODS),
            tries=EXAMPLE,
        )
    if not written.least <= len(numbers) <= len(written.kinds):
        raise ArgumentError(f"the method '{part}' is written in another way.", expected=written.form)
    try:
        return written.make(*map(_number, written.kinds, numbers))
    except ValueError as error:
        if isinstance(error, LeporelloError):
            raise type(error)(error.what, **{"method": part, **error.details, "tries": EXAMPLE}) from error
        raise ArgumentError(f"the method '{part}' has no such number.", expected=written.form) from None


def _number(kind: type, text: str) -> Any:
    return kind(text)
