"""Normalise a text in pieces before it becomes tokens: lower case, or lower-case letters and blanks alone.

The result does not depend on where the pieces are cut.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator

from leporello.errors import ArgumentError

NOT_LETTERS = re.compile("[^A-Za-z]+")


def normalised(pieces: Iterable[str], how: str) -> Iterator[str]:
    """A text in pieces, normalised.

    how   none      as it is
          lower     lower case; capital sigma always becomes σ, because the next piece may go on with the word
          letters   every run of characters other than A-Z and a-z becomes one blank, letters become lower case

    >>> "".join(normalised(["Don't ", "-- PANIC!"], "letters"))
    'don t panic '
    """
    if how not in METHODS:
        near = difflib.get_close_matches(str(how), METHODS, n=1)
        raise ArgumentError(
            f"there is no way to normalise a text named '{how}'.",
            nearest=near[0] if near else None,
            expected=", ".join(METHODS),
        )
    return METHODS[how](pieces)


def _unchanged(pieces: Iterable[str]) -> Iterator[str]:
    yield from pieces


def _lower(pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        yield piece.replace("Σ", "σ").lower()


def _letters(pieces: Iterable[str]) -> Iterator[str]:
    after_blank = False
    for piece in pieces:
        text = NOT_LETTERS.sub(" ", piece).lower()
        if after_blank:
            text = text.removeprefix(" ")
        if text:
            after_blank = text.endswith(" ")
            yield text


METHODS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "none": _unchanged,
    "lower": _lower,
    "letters": _letters,
}
