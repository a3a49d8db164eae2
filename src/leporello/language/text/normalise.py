"""Make texts more alike before they become tokens: lower case, or lower-case letters and blanks alone.

Pieces in, pieces out; where the pieces are cut changes nothing. Knows characters; knows nothing of tokens.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator

from leporello.errors import ArgumentError

OTHERS = re.compile("[^A-Za-z]+")


def normalised(pieces: Iterable[str], how: str) -> Iterator[str]:
    """A text in pieces, normalised.

    how   none      as it is
          lower     lower case; capital sigma is always σ, for where a word ends may lie in the next piece
          letters   every run of other characters than A-Z and a-z becomes one blank, letters become lower case

    >>> "".join(normalised(["Don't ", "-- PANIC!"], "letters"))
    'don t panic '
    """
    if how not in WAYS:
        near = difflib.get_close_matches(str(how), WAYS, n=1)
        raise ArgumentError(
            f"there is no way to normalise a text named '{how}'.",
            nearest=near[0] if near else None,
            expected=", ".join(WAYS),
        )
    return WAYS[how](pieces)


def _as_it_is(pieces: Iterable[str]) -> Iterator[str]:
    yield from pieces


def _lower(pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        yield piece.replace("Σ", "σ").lower()


def _letters(pieces: Iterable[str]) -> Iterator[str]:
    after_blank = False
    for piece in pieces:
        text = OTHERS.sub(" ", piece).lower()
        if after_blank:
            text = text.removeprefix(" ")
        if text:
            after_blank = text.endswith(" ")
            yield text


WAYS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {"none": _as_it_is, "lower": _lower, "letters": _letters}
