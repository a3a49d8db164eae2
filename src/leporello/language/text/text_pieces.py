"""A text in pieces, as a stream of str: slices of it by character, and cuts where no word is cut.

Such a cut is a border (`BORDER`). Words and merged byte pairs never reach over one, so tokens do not depend on where
the pieces were cut before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

BLANK = re.compile(r"\s")
# Before a blank or line end, if none stands before it (a run of them may be one token); between a Chinese punctuation
# mark and a Chinese character, [一-鿿].
BORDER = re.compile(r"(?<=\S)[ \n]|(?<=[，。！？；：、])[一-鿿]")


def sliced(pieces: Iterable[str], start: int, stop: int | None = None) -> Iterator[str]:
    """The characters from `start` to before `stop`, in pieces.

    >>> list(sliced(["one ", "two ", "three"], 2, 9))
    ['e ', 'two ', 't']
    """
    offset = 0
    for piece in pieces:
        if stop is not None and offset >= stop:
            return
        part = piece[max(0, start - offset) : None if stop is None else stop - offset]
        if part:
            yield part
        offset += len(piece)


def next_blank(pieces: Iterable[str], offset: int) -> int:
    """The offset of the first blank or line end from an offset on; the length of the text without one.

    >>> next_blank(["one tw", "o three"], 5)
    7
    """
    for part in sliced(pieces, offset):
        if blank := BLANK.search(part):
            return offset + blank.start()
        offset += len(part)
    return offset


def cut_at_borders(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end at borders. A text without any border becomes one piece.

    >>> list(cut_at_borders(["one tw", "o thr", "ee"]))
    ['one', ' two', ' three']
    """
    held: list[str] = []  # what follows the last border
    for piece in pieces:
        last = held[-1][-1] if held else ""
        border = _last_border(last + piece) - len(last)  # 0 for a border right before this piece
        if border < 0:
            held += [piece] if piece else []
            continue
        yield "".join([*held, piece[:border]])
        held = [piece[border:]]
    if held:
        yield "".join(held)


def cut_to_length(text: str, length: int) -> Iterator[str]:
    """A text in pieces, each cut at the first border after `length` characters; the last has what is left."""
    start = 0
    while start + length < len(text):
        border = BORDER.search(text, start + length)
        if border is None:
            break
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


def _last_border(text: str) -> int:
    """The offset of the last border; -1 without one. The end of the text is searched first, where it mostly is."""
    length = 256
    while True:
        start = max(0, len(text) - length)
        offsets = [border.start() for border in BORDER.finditer(text, start)]
        if offsets:
            return offsets[-1]
        if start == 0:
            return -1
        length *= 8
