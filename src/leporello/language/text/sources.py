"""`source_of`: where a text comes from, and its characters in pieces, as often as one asks.

A text is one or more files, folders, standard input, a str in memory, or the manual inside Python. Knows where texts
lie; knows nothing of tokens.
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
from leporello.language.text.text_file import Binary, TextFile, missing, text_in

PIECE = 1 << 20  # characters, about


class Text(Protocol):
    def texts(self) -> Iterator[str]: ...


@dataclass(frozen=True)
class Memory:
    """A text that is there already."""

    text: str

    def texts(self) -> Iterator[str]:
        for start in range(0, len(self.text), PIECE):
            yield self.text[start : start + PIECE]


@dataclass(frozen=True)
class Source:
    """A text that can be read again and again.

    name      short, for people
    files     the paths it was read from
    kept      it came through standard input or from memory: no later process can read it again
    skipped   how many binary files of folders were left out
    """

    name: str
    parts: tuple[Text, ...]
    files: tuple[str, ...] = ()
    kept: bool = False
    skipped: int = 0

    @staticmethod
    def of_text(text: str, name: str = "a text in memory") -> Source:
        """
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
        return _not_empty(Source(name, (Memory(text),), kept=True))

    def pieces(self) -> Iterator[str]:
        """The text from its start, about a million characters at a time; "\\r\\n" has become "\\n"."""
        return _regrouped(_plain_line_ends(_joined(self.parts)))


def source_of(texts: Sequence[str | Path] = (), encoding: str = "auto") -> Source:
    """The text of files (gzip too) and folders; "-" is standard input; nothing at all is the manual inside Python.

    Several files become one text, with a line end between those that do not end in one. Of a folder all files below are
    taken, in the order of their paths, without hidden and binary ones.

    encoding   auto, or a name that Python knows
    """
    paths = [texts] if isinstance(texts, (str, Path)) else list(texts)
    told = None if encoding == "auto" else named_encoding(encoding)
    if not paths:
        return Source("the manual inside Python", (Memory(manual()),))
    if [str(path) for path in paths].count("-") > 1:
        raise ArgumentError("standard input can be read only once.", came=f"- {paths.count('-')} times")
    return _not_empty(_together([_one(path, told) for path in paths]))


def _one(given: str | Path, encoding: str | None) -> Source:
    shown, path = str(given), Path(given)
    if shown == "-":
        return Source("standard input", (standard_input(encoding),), kept=True)
    if path.is_dir():
        return _folder(path, encoding)
    if not path.exists():
        raise missing(path, shown)
    if not path.is_file():
        return Source(shown, (piped(path, shown, encoding),), kept=True)
    found = text_in(path, shown, encoding)
    if isinstance(found, Binary):
        raise found.refused()
    return Source(path.name, (found,), (shown,))


def _folder(folder: Path, encoding: str | None) -> Source:
    found = [text_in(path, str(path), encoding, doubtful=True) for path in _files_below(folder)]
    parts = tuple(file for file in found if isinstance(file, TextFile))
    if not parts:
        raise ArgumentError(
            "there is no text in this folder.", came=folder, holds=f"{len(found)} binary files" if found else "no files"
        )
    name = f"{folder.resolve().name or folder}/ ({len(parts)} file{'s'[: len(parts) != 1]})"
    return Source(name, parts, tuple(file.shown for file in parts), skipped=len(found) - len(parts))


def _files_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise ArgumentError("the folder cannot be read.", came=error.filename, says=error.strerror) from error

    found = []
    for where, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(where, name) for name in files if not name.startswith(".")]
        found += [path for path in paths if path.is_file()]
    return sorted(found)


def _together(sources: list[Source]) -> Source:
    more = len(sources) - 1
    return Source(
        name=sources[0].name + (f" and {more} more" if more else ""),
        parts=tuple(part for source in sources for part in source.parts),
        files=tuple(file for source in sources for file in source.files),
        kept=any(source.kept for source in sources),
        skipped=sum(source.skipped for source in sources),
    )


def _not_empty(source: Source) -> Source:
    if next(source.pieces(), "") == "":
        raise ArgumentError("the text is empty.", text=source.name, files=", ".join(source.files[:5]) or None)
    return source


def _joined(parts: tuple[Text, ...]) -> Iterator[str]:
    last = "\n"
    for part in parts:
        begun = False
        for text in part.texts():
            if not begun and last != "\n":
                yield "\n"
            begun, last = True, text[-1]
            yield text


def _plain_line_ends(texts: Iterable[str]) -> Iterator[str]:
    held = ""  # a "\r" whose "\n" may come
    for text in texts:
        text = held + text
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix("\r").replace("\r\n", "\n") if "\r" in text else text
    yield held


def _regrouped(texts: Iterable[str]) -> Iterator[str]:
    """Many small texts as few pieces."""
    waiting: list[str] = []
    count = 0
    for text in texts:
        waiting.append(text)
        count += len(text)
        if count >= PIECE:
            yield "".join(waiting)
            waiting, count = [], 0
    if count:
        yield "".join(waiting)


# ---- (language.text.spooled) What can be read only once, standard input and pipes, written to a temporary file as UTF-8, to be read again.
#
# The file vanishes with whoever holds the spool. Knows streams; knows nothing of what the text is for.


class Spooled:
    """A text from a stream, kept in a temporary file."""

    def __init__(self, stream: BinaryIO, shown: str, encoding: str | None) -> None:
        self.path = _temporary()
        self._gone = weakref.finalize(self, self.path.unlink, missing_ok=True)
        raw = _temporary()
        try:
            with raw.open("wb") as handle:
                shutil.copyfileobj(stream, handle, 1 << 20)
            found = text_in(raw, shown, encoding)
            if isinstance(found, Binary):
                raise found.refused()
            with self.path.open("w", encoding="utf-8", newline="") as handle:
                handle.writelines(found.texts())
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


def standard_input(encoding: str | None) -> Spooled:
    if sys.stdin is None or sys.stdin.closed:
        raise ArgumentError("there is no standard input to read.", came="-", tries="the name of a file")
    return Spooled(sys.stdin.buffer, "standard input", encoding)


def piped(path: Path, shown: str, encoding: str | None) -> Spooled:
    """From a path that is no regular file, as a shell's <(command) gives it."""
    try:
        with path.open("rb") as stream:
            return Spooled(stream, shown, encoding)
    except OSError as error:
        raise ArgumentError("the file cannot be read.", file=shown, says=error.strerror or error) from error


def _temporary() -> Path:
    handle, name = tempfile.mkstemp(prefix="leporello-", suffix=".txt")
    os.close(handle)
    return Path(name)


# ---- (language.text.manual) The manual inside Python: a text of half a million characters that every machine with Python has.
#
# Knows `pydoc_data.topics`, what `help("while")` shows; knows nothing of files.


def manual() -> str:
    """The topics of the manual, sorted by name, with blank lines between them."""
    try:
        from pydoc_data.topics import topics  # here: large, and seldom needed
    except ImportError as error:
        raise ArgumentError(
            "this Python comes without its manual.", came="no text", says=error, tries="the name of a text file"
        ) from error
    return "\n\n".join(topics[name].strip("\n") for name in sorted(topics)) + "\n"
