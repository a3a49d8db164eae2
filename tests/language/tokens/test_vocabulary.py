"""What each kind of token is, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from leporello.errors import ArgumentError, FileMismatch
from leporello.language.text.sources import manual
from leporello.language.tokens import byte_tokens
from leporello.language.tokens.vocabulary import (
    fit_tokenizer,
    parse_kind,
    read_vocabulary,
    tokenizer_from_record,
    write_vocabulary,
)
from tests.language.chinese import SIMPLIFIED


def test_characters_go_by_code_point_after_the_unknown_symbol() -> None:
    fit = fit_tokenizer("char", ["baca", "折页"])
    assert fit.size == 6
    assert [fit.symbol(id) for id in range(6)] == ["<unknown>", "a", "b", "c", "折", "页"]
    assert fit.encode("cab页").tolist() == [3, 1, 2, 5]


def test_rare_characters_and_words_are_unknown() -> None:
    assert fit_tokenizer("char", ["abra", "cadabra"], min_count=2).encode("abracadabra").tolist() == [
        *(1, 2, 3, 1),
        *(0, 1, 0, 1),
        *(2, 3, 1),
    ]
    words = fit_tokenizer("word", ["so it is and so", " it was"], min_count=2)
    assert [words.symbol(id) for id in range(words.size)] == ["<unknown>", "␣it"]


def test_a_word_has_its_leading_blank_and_marks_and_other_blanks_stand_alone() -> None:
    fit = fit_tokenizer("word", ["Don't go,  he said.\n He's here (now)\n"])
    split = fit.split("Don't go,  he said.\n He's here (now)\n")  # type: ignore[attr-defined]
    assert split == ["Don't", " go", ",", " ", " he", " said", ".", "\n", " He's", " here", " ", "(", "now", ")", "\n"]


def test_frequent_words_have_small_ids_and_equals_go_by_name() -> None:
    fit = fit_tokenizer("word", [" b a b c"])
    assert [fit.symbol(id) for id in range(fit.size)] == ["<unknown>", "␣b", "␣a", "␣c"]


def test_words_of_a_text_without_blanks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no blanks between its words") as refusal:
        fit_tokenizer("word", [SIMPLIFIED])
    assert "char, byte or bpe:N" in str(refusal.value)
    assert f"0 blanks in {len(SIMPLIFIED)} characters" in str(refusal.value)


def test_bytes_are_256() -> None:
    fit = fit_tokenizer("byte", [])
    assert (fit.size, fit.unknown) == (256, None)
    assert fit.encode("é页").tolist() == list("é页".encode())
    assert [fit.symbol(id) for id in (65, 32, 10, 0xE9)] == ["A", "␣", "\\n", "\\xe9"]


def test_frequent_pairs_of_bytes_are_merged() -> None:
    fit = fit_tokenizer("bpe:300", ["the cat and the hat and the rat " * 20])
    assert 256 < fit.size <= 300
    assert "␣the" in {fit.symbol(id) for id in range(fit.size)}
    assert fit.encode("the the").numel() < 5


def test_chinese_characters_are_merged_from_their_bytes() -> None:
    fit = fit_tokenizer("bpe:500", [SIMPLIFIED])
    assert fit.encode(SIMPLIFIED).numel() < len(SIMPLIFIED.encode()) / 2
    assert "老人" in {fit.symbol(id) for id in range(fit.size)}


def test_the_letters_that_stand_for_bytes_are_those_of_the_package() -> None:
    tokenizers = pytest.importorskip("tokenizers.pre_tokenizers")
    assert sorted(byte_tokens.BYTE_OF_LETTER) == sorted(tokenizers.ByteLevel.alphabet())
    assert sorted(byte_tokens.BYTE_OF_LETTER.values()) == list(range(256))


def test_pairs_are_the_same_every_time() -> None:
    records = [fit_tokenizer("bpe:600", [manual()[:20_000], SIMPLIFIED]).record() for _ in range(4)]
    assert all(record == records[0] for record in records)


@pytest.mark.slow
def test_pairs_are_the_same_in_every_process() -> None:
    script = """
import hashlib, json
from leporello.language.text.sources import manual
from leporello.language.tokens.vocabulary import fit_tokenizer
print(hashlib.sha256(json.dumps(fit_tokenizer("bpe:600", [manual()[:50_000]]).record()).encode()).hexdigest())
"""
    printed = {subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(printed) == 1


def test_pairs_do_not_depend_on_how_the_text_came() -> None:
    text = manual()[:30_000] + SIMPLIFIED
    cut = [text[start : start + 777] for start in range(0, len(text), 777)]
    assert fit_tokenizer("bpe:400", [text]).record() == fit_tokenizer("bpe:400", cut).record()


def test_pairs_are_learned_from_enough_of_a_long_text_without_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_tokens, "TEXT_CHARACTERS", 100)
    monkeypatch.setattr(byte_tokens, "MAX_LEARNED_BYTES", 3 * len(SIMPLIFIED))
    seen: list[str] = []

    def pieces() -> Any:
        for piece in (SIMPLIFIED, SIMPLIFIED[::-1], "页 " * 9):
            seen.append(piece)
            yield piece

    fit_tokenizer("bpe:300", pieces())
    assert seen == [SIMPLIFIED, SIMPLIFIED[::-1]]


def test_an_error_of_the_text_comes_through_the_package() -> None:
    def broken() -> Any:
        yield "some text "
        raise ArgumentError("the file cannot be read.", file="a.txt")

    with pytest.raises(ArgumentError, match=r"a\.txt"):
        fit_tokenizer("bpe:300", broken())


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'leporello\[language\]'"):
        fit_tokenizer("bpe:300", ["text"])


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("chars", "char"),
        ("Char", "char"),
        ("bytes", "byte"),
        ("words", "word"),
        ("bp:300", "bpe:N"),
        ("char:3", "char"),
    ],
)
def test_another_kind_is_refused_with_the_nearest(kind: str, near: str) -> None:
    with pytest.raises(ArgumentError, match=f"nearest +{near}"):
        fit_tokenizer(kind, ["text"])


@pytest.mark.parametrize("kind", ["bpe", "bpe:", "bpe:256", "bpe:many", "bpe:-300", "bpe:²", "bpe:1000001", "bpe:3e3"])
def test_pairs_without_a_fitting_number_are_refused(kind: str) -> None:
    with pytest.raises(ArgumentError, match="bpe needs the number of tokens") as refusal:
        parse_kind(kind)
    assert "bpe:1000" in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "min_count", "words"),
    [
        ("char", 0, "out of range"),
        ("char", 9, "no character occurs so often"),
        ("word", 9, "no word occurs so often"),
        ("byte", 2, "nothing is unknown to byte"),
        ("bpe:300", 2, "nothing is unknown to bpe"),
    ],
)
def test_a_min_count_that_leaves_nothing_or_says_nothing_is_refused(kind: str, min_count: int, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        fit_tokenizer(kind, ["a b c"], min_count=min_count)


@pytest.mark.parametrize("ids", [[4], [-1], torch.tensor([0, 9])])
def test_an_id_that_does_not_exist_is_refused(ids: Any) -> None:
    with pytest.raises(ArgumentError, match="there is no such token"):
        fit_tokenizer("char", ["abc"]).decode(ids)


def broken_bpe(**changes: Any) -> dict[str, Any]:
    contents = json.loads(json.dumps(fit_tokenizer("bpe:260", ["aa bb aa bb"]).record()))
    contents["tokenizers"]["model"].update(changes)
    return contents


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"kind": "syllable"},
        {"kind": ["char"]},
        {"kind": "char"},
        {"kind": "char", "characters": "ba"},
        {"kind": "char", "characters": "aa"},
        {"kind": "word", "words": "abc"},
        {"kind": "word", "words": ["a", 3]},
        {"kind": "word", "words": ["a", "a"]},
        {"kind": "bpe"},
        {"kind": "bpe", "tokenizers": {"model": {}}},
        broken_bpe(vocab={"a": 0, "b": 1}),
        broken_bpe(type="WordPiece"),
        broken_bpe(merges=[["x", "yz"]]),
    ],
)
def test_a_foreign_record_is_refused(record: Any) -> None:
    with pytest.raises(FileMismatch):
        tokenizer_from_record(record)


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe:400"])
def test_a_vocabulary_comes_back(kind: str, tmp_path: Path) -> None:
    fit = fit_tokenizer(kind, [SIMPLIFIED, "so many blanks here " * 9])
    write_vocabulary(fit, tmp_path / "vocabulary.json")
    again = read_vocabulary(tmp_path / "vocabulary.json")
    assert again.record() == fit.record()
    assert again.encode(SIMPLIFIED).tolist() == fit.encode(SIMPLIFIED).tolist()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vocabulary.json"
    write_vocabulary(fit_tokenizer("char", [SIMPLIFIED]), path)
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
