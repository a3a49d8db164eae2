"""Parse the text that names gradient methods: `full,truncated:35,random:0.97`."""

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
class MethodForm:
    """How one method is written.

    form       as shown in errors, with words in place of its numbers
    types      of the numbers that may follow its name
    required   how many of these numbers must be there
    make       builds the method from its numbers
    """

    form: str
    types: tuple[type, ...]
    required: int
    make: Callable[..., Method]


METHODS = {
    "full": MethodForm("full", (), 0, gradient.Full),
    "truncated": MethodForm("truncated:STEPS or truncated:STEPS:EVERY", (int, int), 1, gradient.Truncated),
    "random": MethodForm("random or random:KEEP", (float,), 0, gradient.RandomTruncated),
    "checkpointed": MethodForm("checkpointed or checkpointed:EVERY", (int,), 0, gradient.Checkpointed),
    "rtrl": MethodForm("rtrl", (), 0, gradient.RTRL),
    "uoro": MethodForm("uoro", (), 0, gradient.UORO),
}


def parse_methods(text: str) -> dict[str, Method]:
    """The gradient methods that a text names; each key is the method as it was written.

    >>> parse_methods("full,truncated:35:5")
    {'full': Full(), 'truncated:35:5': Truncated(steps=35, every=5)}
    """
    methods: dict[str, Method] = {}
    for part in (piece.strip() for piece in text.split(",")):
        if part in methods:
            raise ArgumentError(f"the method '{part}' is written twice.", came=text)
        methods[part] = _parse_method(part)
    return methods


def _parse_method(part: str) -> Method:
    name, *numbers = (piece.strip() for piece in part.split(":"))
    method = METHODS.get(name.lower())
    if method is None:
        nearest = difflib.get_close_matches(name.lower(), METHODS, n=2)
        raise ArgumentError(
            f"no gradient method is called '{name}'." if name else "a gradient method has no name.",
            nearest=", ".join(nearest) or None,
            expected=", ".join(METHODS),
            tries=EXAMPLE,
        )
    if not method.required <= len(numbers) <= len(method.types):
        raise ArgumentError(f"the method '{part}' is written in another way.", expected=method.form)
    try:
        return method.make(*map(_parse_number, method.types, numbers))
    except ValueError as error:
        if isinstance(error, LeporelloError):
            raise type(error)(error.what, **{"method": part, **error.details, "tries": EXAMPLE}) from error
        raise ArgumentError(f"the method '{part}' has no such number.", expected=method.form) from None


def _parse_number(type: Callable[[str], Any], text: str) -> Any:
    return type(text)
