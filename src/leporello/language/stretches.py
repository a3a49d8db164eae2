"""Stretches of a text in pieces: where it is parted into training and validation.

Knows characters and their places; knows nothing of ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

BLANK = re.compile(r"\s")


def stretch(pieces: Iterable[str], start: int, stop: int | None = None) -> Iterator[str]:
    """The characters from `start` to before `stop`, in pieces.

    >>> list(stretch(["one ", "two ", "three"], 2, 9))
    ['e ', 'two ', 't']
    """
    place = 0
    for piece in pieces:
        if stop is not None and place >= stop:
            return
        part = piece[max(0, start - place) : None if stop is None else stop - place]
        if part:
            yield part
        place += len(piece)


def before_blank(pieces: Iterable[str], place: int) -> int:
    """The place of the first blank or line end from a place on; the end of the text without one.

    >>> before_blank(["one tw", "o three"], 5)
    7
    """
    for part in stretch(pieces, place):
        if found := BLANK.search(part):
            return place + found.start()
        place += len(part)
    return place
