"""A text becomes tokens in a file: parted, counted, and the same when it is opened again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leporello.errors import ArgumentError, FileMismatch, LeporelloError
from leporello.language.text import sources
from leporello.language.text.sources import Source, manual, source_of
from leporello.language.tokens.corpus import Corpus, CorpusPart, corpus_of, open_corpus
from leporello.language.tokens.vocabulary import fit_tokenizer
from tests.language.chinese import SIMPLIFIED

ENGLISH = manual()[:20_000]
KINDS = ["char", "byte", "word", "bpe:300"]


def text_of(corpus: Corpus, part: CorpusPart | None) -> str:
    assert part is not None
    return corpus.tokenizer.decode(part.tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_both_parts_together_are_the_text(kind: str) -> None:
    corpus = corpus_of(Source.of_text(ENGLISH), kind=kind, tokenizer=fit_tokenizer(kind, [ENGLISH]))
    train, validation = text_of(corpus, corpus.train), text_of(corpus, corpus.validation)
    assert train + validation == ENGLISH
    assert len(train) == 18_000 or kind == "word"
    assert corpus.validation is not None
    for part, text in ((corpus.train, train), (corpus.validation, validation)):
        assert (part.characters, part.bytes, part.unknown) == (len(text), len(text.encode()), 0)
        first = corpus.tokenizer.decode(part.tokens[:1])
        assert (part.first_characters, part.first_bytes) == (len(first), len(first.encode()))


def test_words_are_not_cut_between_the_parts() -> None:
    corpus = corpus_of(Source.of_text("one two three four five"), kind="word", validation=0.5)
    assert text_of(corpus, corpus.train) == "one two three"
    assert corpus.validation is not None
    assert (corpus.validation.characters, corpus.validation.first_characters) == (
        10,
        5,
    )  # " four" is unknown, and counted


def test_the_tokenizer_knows_the_training_part_alone() -> None:
    corpus = corpus_of(Source.of_text("abab" * 5 + "zab页"), validation=4 / 24)
    assert corpus.tokenizer.size == 3
    assert text_of(corpus, corpus.validation) == "�ab�"
    assert corpus.validation is not None
    assert (corpus.validation.unknown, corpus.validation.characters, corpus.validation.bytes) == (2, 4, 6)
    assert (corpus.validation.first_characters, corpus.validation.first_bytes) == (1, 1)
    assert corpus.train.unknown == 0


def test_the_first_byte_of_a_character_is_no_character() -> None:
    corpus = corpus_of(Source.of_text(SIMPLIFIED), kind="byte", validation=0)
    assert (corpus.train.first_characters, corpus.train.first_bytes) == (0, 1)
    assert (corpus.train.characters, corpus.train.bytes) == (len(SIMPLIFIED), len(SIMPLIFIED.encode()))


@pytest.mark.parametrize(("validation", "characters"), [(0, None), (0.5, 50), (0.1, 10), (0.019, 2)])
def test_the_last_share_is_validation(validation: float, characters: int | None) -> None:
    corpus = corpus_of(Source.of_text("0123456789" * 10), validation=validation)
    assert (corpus.validation and corpus.validation.characters) == characters
    assert corpus.train.characters == 100 - (characters or 0)


@pytest.mark.parametrize(("kind", "dtype"), [("char", torch.uint8), ("byte", torch.uint8), ("bpe:300", torch.int32)])
def test_few_tokens_are_kept_as_bytes(kind: str, dtype: torch.dtype) -> None:
    assert corpus_of(Source.of_text(ENGLISH), kind=kind).train.tokens.dtype == dtype


def test_256_characters_and_the_unknown_symbol_need_more_than_a_byte() -> None:
    characters = "".join(map(chr, range(0x4E00, 0x4E00 + 256)))
    for text, dtype in ((characters, torch.int32), (characters[1:], torch.uint8)):
        corpus = corpus_of(Source.of_text(text), validation=0)
        assert corpus.train.tokens.dtype == dtype
        assert text_of(corpus, corpus.train) == text


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(piece=st.integers(1, 60))
def test_pieces_change_nothing(kind: str, piece: int) -> None:
    text = "Don't  cut\n\nthese words, 老人说：“走一步。”他 😀 " * 3
    with pytest.MonkeyPatch.context() as patch:
        expected = corpus_of(Source.of_text(text), kind=kind, validation=0.3)
        patch.setattr(sources, "PIECE_CHARACTERS", piece)
        found = corpus_of(Source.of_text(text), kind=kind, validation=0.3)
    assert found.record() == expected.record()


def test_first_takes_the_first_characters_only() -> None:
    corpus = corpus_of(Source.of_text(ENGLISH), first=101, validation=0)
    assert text_of(corpus, corpus.train) == ENGLISH[:101]
    assert corpus_of(Source.of_text("abc"), first=9, validation=0).train.characters == 3


def test_a_text_can_be_normalised() -> None:
    corpus = corpus_of(Source.of_text("Stop! 停 HERE."), normalise="letters", validation=0)
    assert text_of(corpus, corpus.train) == "stop here "


def test_the_file_holds_the_tokens_of_both_parts(tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    corpus = corpus_of(Source.of_text(ENGLISH), file=file)
    assert os.listdir(tmp_path) == ["tokens.bin"]
    assert file.stat().st_size == len(ENGLISH)
    assert corpus.validation is not None
    assert file.read_bytes() == bytes(corpus.train.tokens.tolist() + corpus.validation.tokens.tolist())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell what is mapped")
def test_the_tokens_are_mapped_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    corpus = corpus_of(Source.of_text(ENGLISH), file=file)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(file) in maps
    corpus.train.tokens[0] = 77  # in memory alone
    assert file.read_bytes()[0] != 77


def test_without_a_file_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    corpus = corpus_of(Source.of_text(ENGLISH), validation=0)
    assert list(tmp_path.iterdir()) == []
    assert text_of(corpus, corpus.train) == ENGLISH


def test_a_failed_encoding_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="too short"):
        corpus_of(Source.of_text("ab"), file=tmp_path / "tokens.bin")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("validation", [0, 0.1])
def test_a_corpus_is_opened_again_without_its_text(kind: str, validation: float, tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    corpus = corpus_of(Source.of_text(ENGLISH), kind=kind, validation=validation, file=file)
    record = json.loads(json.dumps(corpus.record()))
    again = open_corpus(file, corpus.tokenizer, record)
    assert again.record() == corpus.record()
    assert torch.equal(again.train.tokens, corpus.train.tokens)
    assert (again.validation is None) == (validation == 0)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Corpus]:
    file = tmp_path / "tokens.bin"
    return file, corpus_of(Source.of_text(ENGLISH), file=file)


def test_a_cut_file_is_refused(kept: tuple[Path, Corpus]) -> None:
    file, corpus = kept
    contents = file.read_bytes()
    record = corpus.record()
    for other in (contents[:-1], contents + b"x", b""):
        file.unlink()  # what is mapped stays as it is
        file.write_bytes(other)
        with pytest.raises(FileMismatch, match="the tokens are cut") as refusal:
            open_corpus(file, corpus.tokenizer, record)
        assert str(file) in str(refusal.value)


def test_a_damaged_file_is_refused(kept: tuple[Path, Corpus]) -> None:
    file, corpus = kept
    contents = bytearray(file.read_bytes())
    contents[777] ^= 1
    file.unlink()
    file.write_bytes(contents)
    with pytest.raises(FileMismatch, match="the tokens are damaged"):
        open_corpus(file, corpus.tokenizer, corpus.record())


def test_a_missing_file_is_refused(kept: tuple[Path, Corpus]) -> None:
    file, corpus = kept
    file.unlink()
    with pytest.raises(FileMismatch, match="cannot be read"):
        open_corpus(file, corpus.tokenizer, corpus.record())


def test_another_vocabulary_or_border_is_refused(kept: tuple[Path, Corpus]) -> None:
    file, corpus = kept
    with pytest.raises(FileMismatch, match="another text or vocabulary"):
        open_corpus(file, fit_tokenizer("char", ["abc"]), corpus.record())
    record = corpus.record()
    record["train"]["length"] -= 1
    record["validation"]["length"] += 1
    with pytest.raises(FileMismatch, match="another text or vocabulary"):
        open_corpus(file, corpus.tokenizer, record)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"dtype": "int8"}, {"train": None}, {"train": {"length": 3}}, {"digest": None}, {"source": 3}],
)
def test_a_damaged_record_is_refused(change: dict[str, Any], kept: tuple[Path, Corpus]) -> None:
    file, corpus = kept
    with pytest.raises(FileMismatch, match="the record of the tokens is damaged"):
        open_corpus(file, corpus.tokenizer, {**corpus.record(), **change})


def test_the_digest_tells_texts_borders_and_vocabularies_apart() -> None:
    texts = [corpus_of(Source.of_text(text), validation=share) for text in ("abcabc", "abcabb") for share in (0, 0.4)]
    other = corpus_of(Source.of_text("bcdbcd"), validation=0)  # the same ids as abcabc
    assert torch.equal(other.train.tokens, texts[0].train.tokens)
    assert len({corpus.digest for corpus in [*texts, other]}) == 5
    assert corpus_of(Source.of_text("abcabc"), validation=0).digest == texts[0].digest


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("aaaa\nbbb\naaz aaz页", "char", ["'z' (U+007A)", "2 times, first as character 12 of the text, in line 3"]),
        ("aaaa\naaaaaaaaa页", "char", ["'页' (U+9875)", "1 time, first as character 15 of the text, in line 2"]),
        (
            "a b\na b a b a b c c a c",
            "word",
            ["the word '␣c'", "3 times, first as character 16 of the text, in line 2"],
        ),
    ],
)
def test_what_is_unknown_can_be_refused_with_count_and_place(text: str, kind: str, words: list[str]) -> None:
    with pytest.raises(ArgumentError, match="not in the vocabulary of the training part") as refusal:
        corpus_of(Source.of_text(text), kind=kind, unknown="error", validation=0.35)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
    assert "validation" in str(refusal.value)


def test_the_unknown_of_a_min_count_is_refused_in_the_training_part() -> None:
    with pytest.raises(ArgumentError, match="the character 'b'") as refusal:
        corpus_of(Source.of_text("aaabaaaaaa"), min_count=2, unknown="error")
    assert "training" in refusal.value.details["part"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_without_unknown_passes_where_they_are_refused(kind: str) -> None:
    corpus = corpus_of(Source.of_text(" to be or not," * 9), kind=kind, unknown="error", validation=0.3)
    assert corpus.train.unknown == 0


@pytest.mark.parametrize(
    ("text", "validation", "words"),
    [
        ("a", 0, "1 tokens of 1 characters"),
        ("abcdefgh", 0.1, "1 tokens of 1 characters"),
        ("abcdefgh", 0.05, "0 tokens of 0 characters"),
        ("abcdefgh", 0.9, "training    1 tokens"),
    ],
)
def test_a_part_of_fewer_than_two_tokens_is_refused_with_the_counts(text: str, validation: float, words: str) -> None:
    with pytest.raises(ArgumentError, match="the text is too short") as refusal:
        corpus_of(Source.of_text(text), validation=validation)
    assert words in str(refusal.value)


def test_words_without_a_blank_after_the_border_leave_no_validation() -> None:
    with pytest.raises(ArgumentError, match="the text is too short") as refusal:
        corpus_of(Source.of_text("a b c " + "d" * 50), kind="word", validation=0.5)
    assert refusal.value.details["validation"] == "0 tokens of 0 characters"


@pytest.mark.parametrize(
    "options", [{"unknown": "skip"}, {"validation": 1.0}, {"validation": -0.1}, {"validation": True}, {"first": -1}]
)
def test_other_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"the argument '{next(iter(options))}'"):
        corpus_of(Source.of_text("some text"), **options)


def test_a_text_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one two three", encoding="utf-8")
    source = source_of([file])
    read = source.parts[0].texts
    times = iter(["one two three", "one two three", "one two three", "one two three four"])
    object.__setattr__(source, "parts", (type("Growing", (), {"texts": lambda self: iter([next(times)])})(),))
    with pytest.raises(ArgumentError, match="the text changed while it was read"):
        corpus_of(source, validation=0.5)
    assert list(read()) == ["one two three"]


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LeporelloError, match="No space left on device"):
        corpus_of(Source.of_text(ENGLISH), file=tmp_path / "tokens.bin")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "most_seconds"), [("char", 3), ("byte", 3), ("word", 8)])
def test_three_million_characters_are_encoded_in_less_than_seconds(kind: str, most_seconds: float) -> None:
    """On a quiet machine 0.1 s for char, 0.5 s for word: the bounds only tell loops in Python over characters."""
    source = Source.of_text((manual() * 7)[:3_000_000])
    begun = time.perf_counter()
    corpus = corpus_of(source, kind=kind)
    assert time.perf_counter() - begun < most_seconds
    assert corpus.train.characters == pytest.approx(2_700_000, abs=100)
