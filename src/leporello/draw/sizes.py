"""Estimated widths of texts, and the sizes of spots that follow from them.

No font is read: each letter counts as wide as in DejaVu Serif, the widest of the fonts that the stylesheet names. East
Asian characters and emoji are as wide as they are high.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from leporello.draw.picture import Name, Picture, Spot
from leporello.text_table import is_wide

FONT_SIZE = 16.0  # of a name
SMALL_FONT_SIZE = 11.0  # of its index and its time
MAX_ROUND_HALF_WIDTH = 29.0  # half the longest name in a circle; a longer one makes the circle oblong
CIRCLE_PADDING = 3.0  # between a name and its circle
SQUARE = 9.0  # side of the square that marks a delay
LETTER_WIDTHS = (  # in DejaVu Serif, upright or slanted, relative to the font size
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
_WIDTH_OF_LETTER = {letter: width for letters, width in LETTER_WIDTHS for letter in letters}


def text_width(text: str, font_size: float) -> float:
    """Width of a text in a proportional font."""
    return font_size * sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if is_wide(letter):
        return 1.05
    return _WIDTH_OF_LETTER.get(letter, 0.82 if letter.isupper() else 0.65 if letter.isascii() else 0.70)


def name_width(name: Name) -> float:
    """Width of a name with its index and time."""
    small = name.below + (f"({name.time})" if name.time else "")
    return text_width(name.base, FONT_SIZE) + text_width(small, SMALL_FONT_SIZE)


def names_width(names: tuple[Name, ...]) -> float:
    """Width of several names with commas between them."""
    return sum(map(name_width, names)) + text_width(", ", FONT_SIZE) * max(0, len(names) - 1)


@dataclass(frozen=True)
class HalfSize:
    """Half the width and half the height of a spot."""

    x: float
    y: float


def spot_sizes(picture: Picture) -> dict[str, HalfSize]:
    """Half the size of every place: the largest of its spots in all columns."""
    sizes: dict[str, HalfSize] = {}
    radius = 22.0 if any(spot.name.time for spot in picture.spots) else 17.0
    texts = [name_width(spot.name) / 2 + CIRCLE_PADDING for spot in picture.spots if spot.shape == "circle"]
    radius = max([radius, *(text for text in texts if text <= MAX_ROUND_HALF_WIDTH)])
    has_gradients = any(line.kind != "forward" for line in picture.lines)
    for spot in picture.spots:
        size = _spot_size(spot, radius, 20.0 if has_gradients else 13.0)
        largest = sizes.get(spot.place, size)
        sizes[spot.place] = HalfSize(max(size.x, largest.x), max(size.y, largest.y))
    return sizes


def _spot_size(spot: Spot, radius: float, operator_radius: float) -> HalfSize:
    if spot.shape == "point":
        return HalfSize(2.5, 2.5)
    text = name_width(spot.name) / 2
    if spot.shape == "operator":
        return HalfSize(max(operator_radius, text + 5), operator_radius)
    if spot.shape == "circle":
        return HalfSize(radius if text + CIRCLE_PADDING <= radius else text + 8, radius)
    return HalfSize(max(16.0, text + 7), 14.0)
