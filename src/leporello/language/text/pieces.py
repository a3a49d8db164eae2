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


# ---- (language.tokens.borders) Cut a text in pieces only where no word is cut: before a blank or line end, or after a Chinese mark.
#
# Words and merged pairs never reach over such a border, so tokens do not depend on how the text came. A text without any
# border is held whole. Knows characters; knows nothing of ids.

# Blanks and line ends only after what is none: a run of them may be one token. [一-鿿]: Chinese characters.
BORDER = re.compile(r"(?<=\S)[ \n]|(?<=[，。！？；：、])[一-鿿]")


def at_borders(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end at borders.

    >>> list(at_borders(["one tw", "o thr", "ee"]))
    ['one', ' two', ' three']
    """
    held: list[str] = []  # what no border has closed yet
    for piece in pieces:
        last = held[-1][-1] if held else ""
        border = _last_border(last + piece) - len(last)  # one right before this piece is 0
        if border < 0:
            held += [piece] if piece else []
            continue
        yield "".join([*held, piece[:border]])
        held = [piece[border:]]
    if held:
        yield "".join(held)


def in_lengths(text: str, length: int) -> Iterator[str]:
    """A text in pieces of about this length, cut at borders."""
    start = 0
    while start + length < len(text):
        found = BORDER.search(text, start + length)
        if found is None:
            break
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def _last_border(text: str) -> int:
    """The place of the last border; -1 without one. Looks at the end first, where it mostly is."""
    length = 256
    while True:
        start = max(0, len(text) - length)
        places = [found.start() for found in BORDER.finditer(text, start)]
        if places:
            return places[-1]
        if start == 0:
            return -1
        length *= 8
