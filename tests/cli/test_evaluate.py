"""`leporello evaluate`: numbers for people and for programs."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from leporello.language.model.language_model import LanguageModel
from leporello.language.run.folder import Run
from tests.cli.invoke import drawn, leporello, refused
from tests.language.tiny import configured, tiny_run  # noqa: F401

TEXT = "She sells shells by the shore.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def test_numbers_as_json_are_those_of_the_model(tiny: Run, tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT.encode()))
    found = json.loads(drawn("evaluate", tiny.path, tmp_path / "text.gz", "--json"))
    assert list(found) == ["perplexity", "bits_per_character", "bits_per_byte", "tokens", "unknown", "unknown_tokens"]
    assert found["perplexity"] == LanguageModel.load(tiny.path).perplexity(TEXT)
    assert found["bits_per_character"] == pytest.approx(math.log2(found["perplexity"]))
    assert (found["tokens"], found["unknown"]) == (len(TEXT) - 1, 0.0)


def test_people_see_the_same_numbers_of_standard_input_too(tiny: Run) -> None:
    said = leporello("evaluate", tiny.path, "-", "--which", "last", read=TEXT).stdout
    assert f"perplexity          {LanguageModel.load(tiny.path, 'last').perplexity(TEXT):.4f}\n" in said
    assert "tokens              30\n" in said


def test_unknown_characters_are_counted_or_refused_by_name(tiny: Run, text: Path) -> None:
    text.write_text("She sells 光 Q 光.\n", encoding="utf-8")
    assert json.loads(drawn("evaluate", tiny.path, text, "--json"))["unknown"] == pytest.approx(3 / 17)
    assert json.loads(drawn("evaluate", tiny.path, text, "--json"))["unknown_tokens"] == 3
    said = refused("evaluate", tiny.path, text, "--unknown", "error")
    assert "characters outside the vocabulary" in said
    assert "came  '光', 'Q'\n" in said
    assert "--unknown symbol" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--unknown", "ignore"], ["--unknown has no such choice", "symbol, error"]),
        (["--which", "first"], ["names no checkpoint", "'best' or 'last'"]),
        (["--encoding", "utf-16"], ["does not fit the encoding", "text.txt"]),
        (["--encoding", "klingon"], ["klingon"]),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], words: list[str], tiny: Run, text: Path) -> None:
    said = refused("evaluate", tiny.path, text, *options)
    assert [word for word in words if word not in said] == []


def test_what_cannot_be_evaluated_is_refused(tiny: Run, text: Path, tmp_path: Path) -> None:
    for contents, said in (
        ("", "the text is empty"),
        ("S", "too short to predict anything"),
        ("\0\1\2" * 99, "binary"),
    ):
        text.write_text(contents)
        assert said in refused("evaluate", tiny.path, text)
    assert "there is no such file" in refused("evaluate", tiny.path, tmp_path / "texd.txt")
    assert "there is no such run" in refused("evaluate", tmp_path / "nothing", text)
    assert "the folder holds no run" in refused("evaluate", tmp_path, text)


def test_a_damaged_run_is_refused_by_name(tiny: Run, text: Path) -> None:
    tiny.best_file.write_bytes(b"nothing")
    assert "best.safetensors" in refused("evaluate", tiny.path, text)
    configured(tiny, "hidden", "9")
    assert "another network" in refused("evaluate", tiny.path, text, "--which", "last")
    tiny.vocabulary_file.write_text("{}")
    assert "vocabulary.json" in refused("evaluate", tiny.path, text)
