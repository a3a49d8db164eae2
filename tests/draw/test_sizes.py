"""How wide text is taken to be: never narrower than in the widest font that a picture may be drawn with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.draw.picture_layout import layout_picture
from leporello.draw.sizes import FONT_SIZE, SMALL_FONT_SIZE, text_width

# Of the size, as DejaVu Serif draws them; the wider of upright and slanted.
LETTERS, WIDTHS = (
    "a h c o r t x y m L U W V K H I s f ( ) + - . → σ",
    "597 644 565 603 478 402 565 567 948 665 843 1028 722 747 872 395 513 370 390 390 838 338 318 838 681",
)
DRAWN = {letter: int(width) / 1000 for letter, width in zip(LETTERS.split(), WIDTHS.split(), strict=True)}
DRAWN |= dict.fromkeys("0123456789", 0.636)


@pytest.mark.parametrize("letter", DRAWN)
def test_no_letter_is_wider_than_we_think(letter: str) -> None:
    assert text_width(letter, 1) >= DRAWN[letter]


@pytest.mark.parametrize("steps", [3, 100])
def test_names_do_not_touch_their_circles(steps: int) -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), torch.zeros(2, 3), loss=nn.functional.mse_loss)
    for placed in layout_picture(loop.unfold(steps).picture()).placed.values():
        base = sum(FONT_SIZE * DRAWN[letter] for letter in placed.spot.name.base)
        time = sum(SMALL_FONT_SIZE * DRAWN[letter] for letter in f"({placed.spot.name.time})")
        assert placed.half.x - (base + time) / 2 > 2.5, placed.spot.name
