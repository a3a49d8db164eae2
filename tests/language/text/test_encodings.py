"""Encodings are found from the bytes alone; what fits nothing is refused, never guessed."""

from __future__ import annotations

import codecs
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from leporello.errors import ArgumentError
from leporello.language.text.encodings import detect_encoding, named_encoding
from leporello.language.text.sources import source_of
from tests.language.chinese import SIMPLIFIED, TRADITIONAL

GERMAN = "Früh am Morgen faltete der Alte ein langes Blatt Papier.\nDas Kind sah ihm zu: »Was wird das?«\n" * 3


def found(contents: bytes, chunk: int = 1 << 20) -> str | None:
    def read() -> Iterator[bytes]:
        return (contents[start : start + chunk] for start in range(0, len(contents), chunk))

    return detect_encoding(read).encoding


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "gb18030", "big5", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_one_chinese_text_in_any_encoding_gives_the_same_pieces(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_bytes(TRADITIONAL.encode(encoding))
    assert list(source_of([file]).pieces()) == [TRADITIONAL]


@pytest.mark.parametrize("encoding", ["gb18030", "gbk", "utf-16-le", "utf-16-be", "utf-8"])
def test_simplified_characters_are_found_as_well(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_bytes(SIMPLIFIED.encode(encoding))
    assert list(source_of([file]).pieces()) == [SIMPLIFIED]


@pytest.mark.parametrize(("mark", "encoding"), [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")])
def test_a_byte_order_mark_is_no_part_of_the_text(mark: bytes, encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_bytes(mark + SIMPLIFIED.encode(encoding))
    assert next(source_of([file]).pieces()) == SIMPLIFIED
    assert next(source_of([file], encoding).pieces()) == SIMPLIFIED  # told by name, too


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
@pytest.mark.parametrize(("text", "encoding"), [(SIMPLIFIED, "gb18030"), (TRADITIONAL, "big5"), (GERMAN, "utf-8")])
def test_characters_cut_between_chunks_do_not_matter(text: str, encoding: str, chunk: int) -> None:
    assert found(text.encode(encoding), chunk) == encoding


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_latin_text_in_utf16_is_found_without_a_mark(encoding: str) -> None:
    assert found(GERMAN.encode(encoding)) == encoding


@pytest.mark.parametrize("line", SIMPLIFIED.splitlines())
def test_a_single_line_is_enough_for_gb18030(line: str) -> None:
    assert found(line.encode("gb18030")) == "gb18030"


@pytest.mark.parametrize("line", TRADITIONAL.splitlines())
def test_a_single_line_is_enough_for_big5(line: str) -> None:
    assert found(line.encode("big5")) == "big5"


def test_a_misfit_late_in_a_long_ascii_text_still_counts() -> None:
    assert found(b"plain text\n" * 200_000 + SIMPLIFIED.encode("gb18030")) == "gb18030"


def test_big5_as_windows_writes_it_is_found() -> None:
    assert found((TRADITIONAL + "€").encode("cp950")) == "cp950"


def test_latin1_is_never_guessed_and_the_first_misfit_is_named(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    contents = GERMAN.encode("latin-1")
    file.write_bytes(contents)
    with pytest.raises(ArgumentError, match="the encoding of this text cannot be told") as refusal:
        source_of([file])
    place = contents.index(b"\xfc")
    assert f"byte 0xFC at offset {place}, which is not UTF-8" in str(refusal.value)
    assert "letter.txt" in str(refusal.value)
    assert "--encoding" in str(refusal.value)
    assert next(source_of([file], "latin-1").pieces()) == GERMAN


@pytest.mark.parametrize("text", ["naïve", "résumé and café", "“Don’t”", "£5 — déjà vu", "Ελληνικά κείμενα"])
def test_western_texts_are_not_taken_for_chinese(text: str) -> None:
    encoding = "cp1253" if text.startswith("Ε") else "cp1252"
    assert found(text.encode(encoding)) is None


@pytest.mark.parametrize("encoding", ["euc-kr", "euc-jp", "shift-jis"])
def test_korean_and_japanese_are_not_taken_for_chinese(encoding: str) -> None:
    text = "아침에 노인이 긴 종이를 접었다. 아이가 물었다. 무엇을 만드세요? " * 3
    if encoding != "euc-kr":
        text = "朝はやく、おじいさんは長い紙を折りました。子どもはそれを見て、なにをしているのと聞きました。" * 3
    assert found(text.encode(encoding)) is None


def test_a_told_encoding_that_does_not_fit_names_byte_and_offset(tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_bytes(b"x" * 3_000_000 + SIMPLIFIED.encode("gb18030"))
    with pytest.raises(ArgumentError, match="does not fit the encoding utf-8") as refusal:
        list(source_of([file], "utf-8").pieces())
    assert "byte 0xC7 at offset 3000000" in str(refusal.value)


def test_a_character_cut_at_the_end_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cut.txt"
    file.write_bytes("abc页".encode()[:-1])
    with pytest.raises(ArgumentError, match="byte 0xE9 at offset 3"):
        source_of([file])


@pytest.mark.parametrize(
    ("name", "near"), [("utf8x", "utf8"), ("gb1803", "gb18030"), ("big-55", "big5"), ("base64", "auto"), ("\0", "auto")]
)
def test_an_unknown_encoding_is_refused_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(ArgumentError, match="there is no encoding named") as refusal:
        named_encoding(name)
    assert near in str(refusal.value)


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 20, "a PNG picture"),
        (b"PK\x03\x04 and so on", "a zip archive"),
        (b"\x7fELF\x02\x01", "an ELF program"),
        (b"some text\0with a hole", "a NUL byte at offset 9"),
        (b"\x01\x02\x03 text \x04\x05" * 10, "control bytes"),
        (random.Random(0).randbytes(5000), "a NUL byte"),
        (random.Random(1).randbytes(5000).replace(b"\0", b""), "control bytes"),
        (b"".join(value.to_bytes(2, "little") for value in range(3000)), "a NUL byte at offset 0"),
    ],
)
def test_a_binary_file_is_refused_by_name(contents: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(contents)
    with pytest.raises(ArgumentError, match="this file is binary, not a text") as refusal:
        source_of([file])
    assert why in str(refusal.value)
    assert str(file) in str(refusal.value)
