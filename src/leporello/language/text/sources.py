"""`source_of`: a text from files, folders, standard input, a str in memory, or the manual inside Python.

A `Source` gives its characters in pieces and can be read any number of times. Standard input and pipes can be read only
once, so they are copied to a temporary file.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from leporello.errors import ArgumentError, LeporelloError
from leporello.language.text.encodings import named_encoding
from leporello.language.text.text_file import BinaryFile, TextFile, missing_file, text_file

PIECE_CHARACTERS = 1 << 20  # about


class ReadableText(Protocol):
    """A text that can be read from its start any number of times."""

    def texts(self) -> Iterator[str]: ...


@dataclass(frozen=True)
class TextInMemory:
    """A text that is a str already."""

    text: str

    def texts(self) -> Iterator[str]:
        for start in range(0, len(self.text), PIECE_CHARACTERS):
            yield self.text[start : start + PIECE_CHARACTERS]


@dataclass(frozen=True)
class Source:
    """A text that can be read any number of times.

    name      short, for people
    parts     the texts it is made of, in order
    files     the paths it was read from
    kept      only this process has it (standard input, a pipe, a str): no later one can read it again
    skipped   how many binary files of folders were left out
    """

    name: str
    parts: tuple[ReadableText, ...]
    files: tuple[str, ...] = ()
    kept: bool = False
    skipped: int = 0

    @staticmethod
    def of_text(text: str, name: str = "a text in memory") -> Source:
        """The source of a str. An empty one, or one with lone surrogates, is refused.

        >>> list(Source.of_text("one\\r\\ntwo").pieces())
        ['one\\ntwo']
        """
        if not isinstance(text, str):
            raise ArgumentError("this is no text.", came=type(text).__name__, expected="a str")
        try:
            text.encode("utf-32-le")
        except UnicodeEncodeError as error:
            raise ArgumentError(
                "the text holds half a character.",
                came=f"the lone surrogate {text[error.start]!a} at character {error.start}",
                tries='text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")',
            ) from error
        return _not_empty(Source(name, (TextInMemory(text),), kept=True))

    def pieces(self) -> Iterator[str]:
        """The text from its start, about a million characters at a time, with "\\r\\n" replaced by "\\n"."""
        return _regrouped(_plain_line_ends(_joined(self.parts)))


def source_of(texts: Sequence[str | Path] = (), encoding: str = "auto") -> Source:
    """The text of files, which gzip may have packed, and of folders.

    Several files become one text, with a line end between those that do not end in one. A folder stands for all files
    below it in the order of their paths, without hidden and binary ones.

    texts      paths; "-" is standard input; none at all: the manual inside Python
    encoding   auto, or the name of a codec of Python
    """
    paths = [texts] if isinstance(texts, (str, Path)) else list(texts)
    known_encoding = None if encoding == "auto" else named_encoding(encoding)
    if not paths:
        return Source("the manual inside Python", (TextInMemory(manual()),))
    if [str(path) for path in paths].count("-") > 1:
        raise ArgumentError("standard input can be read only once.", came=f"- {paths.count('-')} times")
    return _not_empty(_together([_one(path, known_encoding) for path in paths]))


def _one(name: str | Path, encoding: str | None) -> Source:
    """The source of one file, folder, pipe or "-". Encoding None: it is detected, here and below."""
    shown, path = str(name), Path(name)
    if shown == "-":
        return Source("standard input", (standard_input(encoding),), kept=True)
    if path.is_dir():
        return _folder(path, encoding)
    if not path.exists():
        raise missing_file(path, shown)
    if not path.is_file():
        return Source(shown, (piped(path, shown, encoding),), kept=True)
    file = text_file(path, shown, encoding)
    if isinstance(file, BinaryFile):
        raise file.refusal()
    return Source(path.name, (file,), (shown,))


def _folder(folder: Path, encoding: str | None) -> Source:
    """The source of all texts in a folder; a folder without any is refused."""
    files = [text_file(path, str(path), encoding, doubtful=True) for path in _files_below(folder)]
    parts = tuple(file for file in files if isinstance(file, TextFile))
    if not parts:
        raise ArgumentError(
            "there is no text in this folder.", came=folder, holds=f"{len(files)} binary files" if files else "no files"
        )
    name = f"{folder.resolve().name or folder}/ ({len(parts)} file{'s'[: len(parts) != 1]})"
    return Source(name, parts, tuple(file.shown for file in parts), skipped=len(files) - len(parts))


def _files_below(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, sorted, without hidden ones."""

    def refuse(error: OSError) -> None:
        raise ArgumentError("the folder cannot be read.", came=error.filename, says=error.strerror) from error

    paths: list[Path] = []
    for where, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        paths += [Path(where, name) for name in names if not name.startswith(".")]
    return sorted(path for path in paths if path.is_file())


def _together(sources: list[Source]) -> Source:
    """Several sources as one."""
    more = len(sources) - 1
    return Source(
        name=sources[0].name + (f" and {more} more" if more else ""),
        parts=tuple(part for source in sources for part in source.parts),
        files=tuple(file for source in sources for file in source.files),
        kept=any(source.kept for source in sources),
        skipped=sum(source.skipped for source in sources),
    )


def _not_empty(source: Source) -> Source:
    """The source; an empty text is refused."""
    if next(source.pieces(), "") == "":
        raise ArgumentError("the text is empty.", text=source.name, files=", ".join(source.files[:5]) or None)
    return source


def _joined(parts: tuple[ReadableText, ...]) -> Iterator[str]:
    """The parts one after another, with a line end between those that do not end in one."""
    last = "\n"
    for part in parts:
        for index, text in enumerate(part.texts()):
            if index == 0 and last != "\n":
                yield "\n"
            last = text[-1]
            yield text


def _plain_line_ends(texts: Iterable[str]) -> Iterator[str]:
    """The texts with "\\r\\n" replaced by "\\n", also where a cut falls between the two."""
    held = ""  # a "\r" at the end of a text: the next may begin with "\n"
    for text in texts:
        text = held + text
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix("\r").replace("\r\n", "\n") if "\r" in text else text
    yield held


def _regrouped(texts: Iterable[str]) -> Iterator[str]:
    """Many small texts joined to pieces of at least `PIECE_CHARACTERS`; the last may be shorter, none is empty."""
    waiting: list[str] = []
    count = 0
    for text in texts:
        waiting.append(text)
        count += len(text)
        if count >= PIECE_CHARACTERS:
            yield "".join(waiting)
            waiting, count = [], 0
    if count:
        yield "".join(waiting)


class SpooledText:
    """The text of a stream, copied as UTF-8 to a temporary file that is removed with this object.

    shown   its name in messages
    """

    def __init__(self, stream: BinaryIO, shown: str, encoding: str | None) -> None:
        self.path = _temporary()
        self._remove = weakref.finalize(self, self.path.unlink, missing_ok=True)
        raw = _temporary()
        try:
            with raw.open("wb") as handle:
                shutil.copyfileobj(stream, handle, 1 << 20)
            file = text_file(raw, shown, encoding)
            if isinstance(file, BinaryFile):
                raise file.refusal()
            with self.path.open("w", encoding="utf-8", newline="") as handle:
                handle.writelines(file.texts())
        except OSError as error:
            raise LeporelloError(
                "the text could not be kept in a temporary file.",
                text=shown,
                folder=raw.parent,
                says=error.strerror or error,
                tries="TMPDIR=FOLDER with more room",
            ) from error
        finally:
            raw.unlink(missing_ok=True)
        self._text = TextFile(self.path, shown, "utf-8")

    def texts(self) -> Iterator[str]:
        return self._text.texts()


def standard_input(encoding: str | None) -> SpooledText:
    """The text of standard input."""
    if sys.stdin is None or sys.stdin.closed:
        raise ArgumentError("there is no standard input to read.", came="-", tries="the name of a file")
    return SpooledText(sys.stdin.buffer, "standard input", encoding)


def piped(path: Path, shown: str, encoding: str | None) -> SpooledText:
    """The text of a path that is no regular file, such as a shell's <(command)."""
    try:
        with path.open("rb") as stream:
            return SpooledText(stream, shown, encoding)
    except OSError as error:
        raise ArgumentError("the file cannot be read.", file=shown, says=error.strerror or error) from error


def _temporary() -> Path:
    """A new, empty temporary file."""
    handle, name = tempfile.mkstemp(prefix="leporello-", suffix=".txt")
    os.close(handle)
    return Path(name)


def manual() -> str:
    """The manual inside Python: half a million characters that every machine with Python has.

    These are the topics of `pydoc_data.topics`, which `help("while")` shows, sorted by name.
    """
    try:
        from pydoc_data.topics import topics  # here: large, and seldom needed
    except ImportError as error:
        raise ArgumentError(
            "this Python comes without its manual.", came="no text", says=error, tries="the name of a text file"
        ) from error
    return "\n\n".join(topics[name].strip("\n") for name in sorted(topics)) + "\n"
