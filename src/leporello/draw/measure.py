"""How wide text will be, near enough: no font is asked, so each letter is as wide as in the widest font we name.

Knows characters only; a character of Chinese, Japanese or Korean, or an emoji, is as wide as it is high.
"""

from __future__ import annotations

import unicodedata

from leporello.draw.picture import Name

SIZE = 16.0  # of a name
SMALL = 11.0  # of its index and its time
SHARES = (  # of the size, in DejaVu Serif, upright or slanted
    ("ijl.,;:'|! ·", 0.34),
    ("ft()[]{}-IJ", 0.41),
    ("rsz_", 0.53),
    ("cvxy", 0.57),
    ("aeko", 0.61),
    ("FLPSTYZ", 0.70),
    ("ABCEKRVX", 0.77),
    ("DGOQ", 0.82),
    ("HNU+=<>→←", 0.88),
    ("mw", 0.95),
    ("MW@%…—", 1.03),
)
_SHARE = {letter: share for letters, share in SHARES for letter in letters}


def text_width(text: str, size: float) -> float:
    """Width of a text in a proportional font of that size."""
    return size * sum(_share(letter) for letter in text)


def _share(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if is_wide(letter):
        return 1.05
    return _SHARE.get(letter, 0.82 if letter.isupper() else 0.65 if letter.isascii() else 0.70)


def is_wide(letter: str) -> bool:
    """Whether a letter takes two columns of a terminal."""
    return unicodedata.east_asian_width(letter) in ("W", "F")


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(letter) else 2 if is_wide(letter) else 1 for letter in text)


def name_width(name: Name) -> float:
    small = name.below + (f"({name.time})" if name.time else "")
    return text_width(name.base, SIZE) + text_width(small, SMALL)


def names_width(names: tuple[Name, ...]) -> float:
    return sum(map(name_width, names)) + text_width(", ", SIZE) * max(0, len(names) - 1)
