"""Normalised texts do not depend on how they are cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leporello.errors import ArgumentError
from leporello.language.text.normalise import normalised


@given(st.lists(st.text(alphabet="aB ,\n'é页Σİ9", max_size=5)), st.sampled_from(["none", "lower", "letters"]))
def test_cuts_change_nothing(pieces: list[str], how: str) -> None:
    assert "".join(normalised(pieces, how)) == "".join(normalised(["".join(pieces)], how))


@given(st.text(alphabet="aBc ,\n'é页"))
def test_letters_are_lower_case_words_with_one_blank_between(text: str) -> None:
    assert "".join(normalised([text], "letters")) == re.sub("[^a-z]+", " ", text.lower())


def test_lower_keeps_all_but_case() -> None:
    assert list(normalised(["Früh AM Morgen, 折页"], "lower")) == ["früh am morgen, 折页"]


def test_another_way_is_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"nearest +letters"):
        normalised(["x"], "letter")
