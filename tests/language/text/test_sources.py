"""Files, folders, gzip, standard input, memory and the manual: one text each, to be read again and again."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from leporello.errors import ArgumentError
from leporello.language.text import sources
from leporello.language.text.sources import Source, source_of
from tests.language.chinese import SIMPLIFIED


def text_of(source: Source) -> str:
    return "".join(source.pieces())


def test_a_file_can_be_read_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_text(SIMPLIFIED, encoding="utf-8")
    source = source_of([str(file)])
    assert text_of(source) == text_of(source) == SIMPLIFIED
    assert (source.name, source.files, source.kept, source.skipped) == ("story.txt", (str(file),), False, 0)


def test_a_lone_path_is_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one", encoding="utf-8")
    assert text_of(source_of(file)) == text_of(source_of(str(file))) == "one"  # type: ignore[arg-type]


def test_several_files_are_joined_by_line_ends_where_they_lack_one(tmp_path: Path) -> None:
    paths = []
    for name, text in {"a": "one", "b": "two\n", "c": "", "d": "three", "e": "four"}.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(text.encode())
    source = source_of(paths)
    assert text_of(source) == "one\ntwo\nthree\nfour"
    assert source.name == "a and 4 more"


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_windows_line_ends_become_plain_ones_wherever_chunks_end(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leporello.language.text.text_file.CHUNK_BYTES", chunk)
    file = tmp_path / "a"
    file.write_bytes(b"\r\none\r\n\r\ntwo\rthree\r\r\nend\r")
    assert text_of(source_of([file])) == "\none\n\ntwo\rthree\r\nend\r"


def test_pieces_have_about_a_million_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_CHARACTERS", 100)
    for number in range(50):
        (tmp_path / f"{number:02}").write_text("0123456789\n", encoding="utf-8")
    lengths = [len(piece) for piece in source_of([tmp_path]).pieces()]
    assert sum(lengths) == 550
    assert all(100 <= length < 200 for length in lengths[:-1])
    assert {len(piece) for piece in Source.of_text("x" * 300).pieces()} == {100}


def test_a_folder_is_all_its_texts_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    texts = {"b/z.txt": "second\n", "a.txt": "first\n", "c.txt": "third", ".secret": "no", ".hidden/x": "no"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "b" / "numbers.bin").write_bytes(bytes(range(256)))
    for encoding in ("auto", "utf-8"):
        source = source_of([tmp_path], encoding)
        assert text_of(source) == "first\nsecond\nthird"
        assert source.skipped == 2
        assert source.files == tuple(str(tmp_path / name) for name in ("a.txt", "b/z.txt", "c.txt"))
        assert source.name == f"{tmp_path.name}/ (3 files)"


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no text in this folder") as refusal:
        source_of([tmp_path])
    assert "no files" in str(refusal.value)
    (tmp_path / "x").write_bytes(b"\0\1")
    with pytest.raises(ArgumentError, match="1 binary file"):
        source_of([tmp_path])


def test_a_text_of_unknown_encoding_in_a_folder_is_refused_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good", encoding="utf-8")
    (tmp_path / "odd").write_bytes(b"caf\xe9 noir")
    with pytest.raises(ArgumentError, match="odd"):
        source_of([tmp_path])


def test_gzip_is_unpacked_whatever_its_name(tmp_path: Path) -> None:
    for name in ("story.txt.gz", "story"):
        file = tmp_path / name
        file.write_bytes(gzip.compress(SIMPLIFIED.encode("gb18030")))
        assert text_of(source_of([file])) == SIMPLIFIED


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_gzip_is_refused(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "story.txt.gz"
    contents = bytearray(gzip.compress(SIMPLIFIED.encode()))
    if damage == "cut":
        del contents[-20:]
    else:
        contents[60] ^= 0xFF
    file.write_bytes(contents)
    with pytest.raises(ArgumentError, match="damaged or cut") as refusal:
        source_of([file])
    assert "story.txt.gz" in str(refusal.value)


def test_standard_input_is_kept_to_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(SIMPLIFIED.encode("gb18030")))
    monkeypatch.setattr(sys, "stdin", stream)
    source = source_of(["-"])
    assert text_of(source) == text_of(source) == SIMPLIFIED
    assert (source.name, source.files, source.kept) == ("standard input", (), True)


def test_what_is_kept_vanishes_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SIMPLIFIED.encode("gb18030"))))
    source = source_of(["-"])
    file = source.parts[0].path  # type: ignore[attr-defined]
    there = file.read_text(encoding="utf-8")
    del source
    assert there == SIMPLIFIED  # whatever it came in
    assert not file.exists()


def test_binary_standard_input_is_refused_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x7fELF\0\0")))
    with pytest.raises(ArgumentError, match="binary"):
        source_of(["-"])
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_standard_input_twice_is_refused() -> None:
    with pytest.raises(ArgumentError, match="only once"):
        source_of(["-", "-"])


def test_a_pipe_is_kept_like_standard_input(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("through a pipe",))
    writer.start()
    source = source_of([pipe])
    writer.join()
    assert text_of(source) == text_of(source) == "through a pipe"
    assert source.kept


def test_nothing_is_the_manual_inside_python() -> None:
    source = source_of([])
    text = text_of(source)
    assert len(text) > 400_000
    assert text.index(topics["assert"].strip("\n")) < text.index(topics["while"].strip("\n"))
    assert (source.files, source.kept) == ((), False)


def test_a_text_in_memory() -> None:
    source = Source.of_text("one\r\ntwo")
    assert text_of(source) == "one\ntwo"
    assert source.kept


def test_half_a_character_in_memory_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"lone surrogate .* at character 2"):
        Source.of_text("ab\ud83d")


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ArgumentError, match="there is no such file") as refusal:
        source_of([tmp_path / "storry.txt"])
    assert str(tmp_path / "story.txt") in str(refusal.value)
    with pytest.raises(ArgumentError, match="there is no folder"):
        source_of([tmp_path / "nowhere" / "story.txt"])


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "locked.txt"
    file.write_text("x", encoding="utf-8")

    def locked(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", locked)
    with pytest.raises(ArgumentError, match="cannot be read") as refusal:
        source_of([file])
    assert "Permission denied" in str(refusal.value)
    assert "locked.txt" in str(refusal.value)


@pytest.mark.parametrize("contents", [b"", b"\xef\xbb\xbf", b"\xff\xfe"])
def test_an_empty_text_is_refused(contents: bytes, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_bytes(contents)
    with pytest.raises(ArgumentError, match="the text is empty") as refusal:
        source_of([file])
    assert "empty.txt" in str(refusal.value)


def test_an_empty_text_in_memory_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the text is empty"):
        Source.of_text("")
