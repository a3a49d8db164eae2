"""A vocabulary in a file comes back as it was, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leporello.errors import FileMismatch
from leporello.language.tokens import fitted, read_vocabulary, write_vocabulary
from tests.language.chinese import SIMPLIFIED


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe:400"])
def test_a_vocabulary_comes_back(kind: str, tmp_path: Path) -> None:
    fit = fitted(kind, [SIMPLIFIED, "so many blanks here " * 9])
    write_vocabulary(fit, tmp_path / "vocabulary.json")
    again = read_vocabulary(tmp_path / "vocabulary.json")
    assert again.record() == fit.record()
    assert again.encode(SIMPLIFIED).tolist() == fit.encode(SIMPLIFIED).tolist()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vocabulary.json"
    write_vocabulary(fitted("char", [SIMPLIFIED]), path)
    return path


def test_a_vocabulary_can_be_read_by_people(file: Path) -> None:
    contents = json.loads(file.read_text(encoding="utf-8"))
    assert (contents["format"], contents["version"]) == ("leporello vocabulary", 1)
    assert "老" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("length", [0, 1, 100, -3])
def test_a_cut_vocabulary_is_refused(length: int, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(FileMismatch, match="damaged or cut") as refusal:
        read_vocabulary(file)
    assert str(file) in str(refusal.value)


def test_a_changed_vocabulary_is_refused(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace("人", "亻"), encoding="utf-8")
    with pytest.raises(FileMismatch, match="differs from its digest") as refusal:
        read_vocabulary(file)
    assert str(file) in str(refusal.value)


@pytest.mark.parametrize("contents", [[], 3, {}, {"format": "another"}, {"version": 1}])
def test_the_json_of_something_else_is_refused(contents: Any, file: Path) -> None:
    file.write_text(json.dumps(contents), encoding="utf-8")
    with pytest.raises(FileMismatch, match="the file is no vocabulary"):
        read_vocabulary(file)


def test_another_version_is_refused(file: Path) -> None:
    contents = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**contents, "version": 2}), encoding="utf-8")
    with pytest.raises(FileMismatch, match="another version"):
        read_vocabulary(file)


def test_a_missing_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileMismatch, match="cannot be read"):
        read_vocabulary(tmp_path / "vocabulary.json")
