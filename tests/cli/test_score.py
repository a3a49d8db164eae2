"""`leporello score`: a text and its surprises."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from leporello.cli.score import bits_per_piece
from leporello.language.config import Config
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.network import network_of
from leporello.language.run.folder import Run
from leporello.language.tokens.byte_tokens import Byte
from tests.cli.invoke import drawn, refused
from tests.language.tiny import tiny_run  # noqa: F401


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("She sells 红 shells.\n", encoding="utf-8")
    return file


def test_a_text_stands_above_marks_of_its_surprise(tiny: Run, text: Path) -> None:
    found = drawn("score", tiny.path, text)
    assert found.startswith("bits: 0-1 none")
    assert "She sells 红 shells.⏎\n" in found
    assert "perplexity " in found.splitlines()[-2]


def test_bits_as_json_are_those_of_the_perplexity(tiny: Run, text: Path) -> None:
    found = json.loads(drawn("score", tiny.path, text, "--json", "--first", 9))
    assert len(found["tokens"]) == len(found["bits"]) == 9
    assert found["bits"][0] is None
    assert 2 ** (sum(found["bits"][1:]) / 8) == pytest.approx(found["perplexity"], rel=1e-9)


def test_a_page_is_written(tiny: Run, text: Path, tmp_path: Path) -> None:
    assert "wrote" in drawn("score", tiny.path, text, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "红" in page


def test_bytes_of_one_character_come_together_with_their_bits() -> None:
    model = LanguageModel(network_of(Config(hidden=3, engine="stepwise"), 256), Byte(), Config())
    pieces, bits = bits_per_piece(model, "a红b", [0.0, 1.0, 2.0, 4.0, 8.0])
    assert pieces == ["a", "红", "b"]
    assert math.isnan(bits[0])
    assert bits[1:] == [7.0, 8.0]


def test_it_says_how_many_tokens_were_unknown_and_which(tiny: Run, text: Path) -> None:
    text.write_text("She sells sea shells.\n")
    assert "unknown" not in drawn("score", tiny.path, text)
    text.write_text("She sells 光 Q 光.\n", encoding="utf-8")
    assert drawn("score", tiny.path, text).endswith("\n3 of 17 tokens unknown: '光', 'Q'\n")
    assert json.loads(drawn("score", tiny.path, text, "--json"))["unknown_tokens"] == 3
    assert LanguageModel.load(tiny.path).evaluate("She sells 光 Q 光.\n").unknown_tokens == 3


def test_what_cannot_be_is_refused(tiny: Run, text: Path, tmp_path: Path) -> None:
    assert "--first is no count" in refused("score", tiny.path, text, "--first", -1)
    assert "tells no format" in refused("score", tiny.path, text, "--html", tmp_path / "page.txt")
    assert "outside the vocabulary" in refused("score", tiny.path, text, "--unknown", "error")
