"""One file as text: unpacked, its encoding found or told, read piece by piece as often as one likes.

Knows one file; knows nothing of folders, nor of what the text is for.
"""

from __future__ import annotations

import difflib
import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leporello.errors import ArgumentError
from leporello.language.text.binary_files import known_format, many_controls
from leporello.language.text.encodings import Misfit, decoded, find_encoding

CHUNK = 1 << 20
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class TextFile:
    """path       where it lies
    shown      what people call it
    encoding   in Python's spelling"""

    path: Path
    shown: str
    encoding: str

    def texts(self) -> Iterator[str]:
        try:
            yield from decoded(chunks_of(self.path, self.shown), self.encoding)
        except Misfit as misfit:
            raise ArgumentError(
                f"the text does not fit the encoding {self.encoding}.",
                file=self.shown,
                came=misfit,
                tries="--encoding auto, or the encoding that it was written in",
            ) from misfit


@dataclass(frozen=True)
class Binary:
    """A file that is no text."""

    shown: str
    why: str

    def refused(self) -> ArgumentError:
        return ArgumentError(
            "this file is binary, not a text.",
            file=self.shown,
            came=self.why,
            tries="a text file; --encoding NAME if it is one after all",
        )


def text_in(path: Path, shown: str, encoding: str | None, *, doubtful: bool = False) -> TextFile | Binary:
    """A file as text, or the word that it is none.

    encoding   None: it is found
    doubtful   look whether it is a text even if the encoding is told, as in a folder of all kinds of files
    """
    if encoding is None:
        return _found(path, shown)
    head = next(chunks_of(path, shown), b"")
    why = known_format(head)
    if doubtful and not why and not encoding.startswith(("utf-16", "utf-32")):
        why = "NUL bytes" if 0 in head else many_controls(head)
    return Binary(shown, why) if why else TextFile(path, shown, encoding)


def _found(path: Path, shown: str) -> TextFile | Binary:
    finding = find_encoding(lambda: chunks_of(path, shown))
    if finding.encoding:
        return TextFile(path, shown, finding.encoding)
    if finding.binary:
        return Binary(shown, finding.binary)
    raise ArgumentError(
        "the encoding of this text cannot be told.",
        file=shown,
        came=f"{finding.misfit}, which is not UTF-8",
        expected="UTF-8, UTF-16, GB18030 or Big5: none of them gives a likely text",
        tries="--encoding NAME, for many western texts --encoding cp1252 or latin-1",
    )


def chunks_of(path: Path, shown: str) -> Iterator[bytes]:
    """The bytes of a file, unpacked where gzip has packed it, whatever its name."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(GZIP)) == GZIP
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as handle:
                while chunk := handle.read(CHUNK):
                    yield chunk
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ArgumentError(
            "the file is packed by gzip, and damaged or cut.", file=shown, says=error, tries=f"gzip -t {shown}"
        ) from error
    except FileNotFoundError as error:
        raise missing(path, shown) from error
    except OSError as error:
        raise ArgumentError("the file cannot be read.", file=shown, says=error.strerror or error) from error


def missing(path: Path, shown: str) -> ArgumentError:
    try:
        there = os.listdir(path.parent)
    except OSError:
        return ArgumentError("there is no such file.", came=shown, there_is_no_folder=path.parent)
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.5)
    return ArgumentError(
        "there is no such file.", came=shown, nearest=path.parent / near[0] if near else None, folder=path.parent
    )
