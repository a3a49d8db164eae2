"""Estimated widths of texts, and the sizes of spots that follow from them.

No font is read: each letter counts as wide as in DejaVu Serif, the widest of the fonts that the stylesheet names. East
Asian characters and emoji are as wide as they are high.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from leporello.draw.picture import Name, Numbers, Picture, Spot
from leporello.text_table import is_wide

FONT_SIZE = 16.0  # of a name
SMALL_FONT_SIZE = 11.0  # of its index and its time
MAX_ROUND_HALF_WIDTH = 29.0  # half the longest name in a circle; a longer one makes the circle oblong
CIRCLE_PADDING = 3.0  # between a name and its circle
NUMBER_FONT_SIZE = 11.0  # of numbers on a card
HEAD_FONT_SIZE = 13.0  # of the name of a gradient above its numbers
HEAD_HEIGHT = 21.0  # of the line above numbers
CELL_HEIGHT = 15.0  # of a number
CARD_PADDING = 5.0  # between numbers and the border of their card
CARD_SPACING = 10.0  # between two vectors of a card
CAPTION_FONT_SIZE = 14.0  # of a word beside a spot
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
    ("HNU+=<>→←−×", 0.88),
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


@dataclass(frozen=True)
class PlacedNumbers:
    """Numbers of a card, with the coordinates of their head and their upper left corner from the card's centre."""

    numbers: Numbers
    head: tuple[float, float]
    left: float
    top: float
    cell: float  # width of a number's cell


def card_numbers(spot: Spot) -> tuple[HalfSize, list[PlacedNumbers]]:
    """Half the size of a card, and where its numbers are: vectors side by side, matrices below each other."""
    cells = [_cell_width(block) for block in spot.numbers]
    heads = [
        name_width(spot.name) if b.head is None else name_width(b.head) * HEAD_FONT_SIZE / FONT_SIZE
        for b in spot.numbers
    ]
    widths = [
        max(head, cell * len(block.texts[0])) for head, cell, block in zip(heads, cells, spot.numbers, strict=True)
    ]
    heights = [HEAD_HEIGHT + CELL_HEIGHT * len(block.texts) for block in spot.numbers]
    beside = all(len(block.texts[0]) == 1 for block in spot.numbers)
    count = len(spot.numbers)
    if beside:
        width, height = sum(widths) + CARD_SPACING * (count - 1), max(heights)
    else:
        width, height = max(widths), sum(heights) + CARD_SPACING / 2 * (count - 1)
    x, y = -width / 2, -height / 2
    placed = []
    for block, cell, own, tall in zip(spot.numbers, cells, widths, heights, strict=True):
        middle = x + own / 2 if beside else 0.0
        left = middle - cell * len(block.texts[0]) / 2
        placed.append(PlacedNumbers(block, (middle, y + HEAD_HEIGHT / 2 - 1), left, y + HEAD_HEIGHT, cell))
        x, y = (x + own + CARD_SPACING, y) if beside else (x, y + tall + CARD_SPACING / 2)
    return HalfSize(width / 2 + CARD_PADDING, height / 2 + CARD_PADDING), placed


def _cell_width(block: Numbers) -> float:
    return max(text_width(text, NUMBER_FONT_SIZE) for row in block.texts for text in row) + 6


def _spot_size(spot: Spot, radius: float, operator_radius: float) -> HalfSize:
    if spot.shape == "point":
        return HalfSize(2.5, 2.5)
    if spot.shape == "card":
        least = HalfSize(name_width(spot.name) / 2 + 8, radius)
        card = card_numbers(spot)[0] if spot.numbers else least
        return HalfSize(max(card.x, least.x), max(card.y, least.y))
    text = name_width(spot.name) / 2
    if spot.shape == "operator":
        return HalfSize(max(operator_radius, text + 5), operator_radius)
    if spot.shape == "circle":
        return HalfSize(radius if text + CIRCLE_PADDING <= radius else text + 8, radius)
    return HalfSize(max(16.0, text + 7), 14.0)
