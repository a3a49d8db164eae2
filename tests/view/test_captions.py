"""Words beside the spots of a strip: tokens that go in and come out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.draw.caption_placement import place_captions
from leporello.draw.label_placement import place_labels
from leporello.draw.picture import Picture
from leporello.draw.picture_layout import layout_picture
from leporello.errors import ArgumentError
from leporello.view.folded_loop import UnfoldedLoop
from tests.draw.geometry import faults
from tests.draw.test_svg import texts

X = torch.zeros(1, 3)
TOKENS = {"x": list("machin"), "o": list("achine")}


def strip(steps: int = 6) -> UnfoldedLoop:
    return lp.fold(lp.Elman(3, 4, 2), X).unfold(steps)


def captions(picture: Picture) -> dict[str, str]:
    return {str(spot.name): spot.caption for spot in picture.spots if spot.caption}


def test_every_step_has_its_word() -> None:
    found = captions(strip().picture(captions=TOKENS))
    assert "".join(found[f"x({step})"] for step in range(1, 7)) == "machin"
    assert "".join(found[f"o({step})"] for step in range(1, 7)) == "achine"
    assert len(found) == 12
    assert strip().picture(captions={"x": "machin"}) == strip().picture(captions={"x": list("machin")})


def test_a_gap_has_no_words_and_the_last_steps_their_own() -> None:
    found = captions(strip(10).picture(captions={"x": list("0123456789")}))
    assert found == {"x(1)": "0", "x(2)": "1", "x(3)": "2", "x(8)": "7", "x(9)": "8", "x(10)": "9"}


def test_inputs_have_them_below_and_outputs_above() -> None:
    layout = layout_picture(strip().picture(captions=TOKENS))
    below = {caption.words: caption for caption in place_captions(layout, place_labels(layout))[:6]}
    first = layout.placed["input.x@1"]
    assert (below["m"].x, below["m"].y > first.y + first.half.y) == (first.x, True)
    above = place_captions(layout, place_labels(layout))[6]
    output = layout.placed["output.o@1"]
    assert (above.words, above.x, above.y < output.y - output.half.y) == ("a", output.x, True)


@pytest.mark.parametrize("options", [{}, {"backward": True}, {"detail": "operators"}])
@pytest.mark.parametrize("loss", [None, mse_loss])
def test_words_lie_on_nothing(options: dict[str, object], loss: object) -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over"]
    loop = lp.fold(lp.Elman(3, 4, 2), X, loss=loss)  # type: ignore[arg-type]
    picture = loop.unfold(6).picture(captions={"x": words, "o": words[::-1], "h": list("abcdef")}, **options)  # type: ignore[arg-type]
    assert faults(layout_picture(picture)) == []


@pytest.mark.parametrize("made", ["svg", "text", "dot", "mermaid"])
def test_every_format_writes_them(made: str) -> None:
    drawn = getattr(strip(1), made)(captions={"x": ["machine"]})
    assert "machine" in drawn


def test_spaces_and_line_breaks_can_be_seen() -> None:
    found = captions(strip(3).picture(captions={"x": [" ", "\n", " the"]}))
    assert list(found.values()) == ["␣", "↵", "␣the"]


def test_hostile_words_are_escaped() -> None:
    assert "<b>&" in texts(strip(1).svg(captions={"x": ["<b>&"]}))


def test_what_only_the_last_step_has_takes_one_word() -> None:
    loop = lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), torch.zeros(5, 2, 3))
    assert captions(loop.unfold(3).picture(captions={"o": ["good"]})) == {"o(t)": "good"}


def test_both_directions_have_captions_too() -> None:
    both = lp.Bidirectional(lp.RNN(3, 4), lp.RNN(3, 4)).fold(torch.zeros(5, 2, 3))
    assert "m" in texts(both.unfold(3).svg(captions={"x": "mac"}))


def test_unknown_names_and_wrong_lengths_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'captions' names what the picture does not show") as refusal:
        strip().svg(captions={"z": list("machin")})
    assert "x, h, o" in str(refusal.value)
    with pytest.raises(ArgumentError, match="captions of 'x' are not as many") as refusal:
        strip().svg(captions={"x": list("mac")})
    assert "3 words" in str(refusal.value)
    with pytest.raises(ArgumentError, match="captions of 'x' are not as many"):
        strip().svg(captions={"x": 3})
