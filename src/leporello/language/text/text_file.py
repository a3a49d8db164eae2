"""`text_file`: one file as text, unpacked by gzip and with its encoding detected, or the reason why it is binary."""

from __future__ import annotations

import difflib
import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leporello.errors import ArgumentError
from leporello.language.text.encodings import (
    UndecodableByte,
    control_byte_share,
    decoded,
    detect_encoding,
    known_format,
)

CHUNK_BYTES = 1 << 20  # read at once
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class TextFile:
    """A file of text that can be read any number of times.

    path       of the file
    shown      its name in messages
    encoding   in Python's spelling
    """

    path: Path
    shown: str
    encoding: str

    def texts(self) -> Iterator[str]:
        """The characters of the file in pieces; a byte that does not fit the encoding is refused with its offset."""
        try:
            yield from decoded(chunks_of(self.path, self.shown), self.encoding)
        except UndecodableByte as undecodable:
            raise ArgumentError(
                f"the text does not fit the encoding {self.encoding}.",
                file=self.shown,
                came=undecodable,
                tries="--encoding auto, or the encoding that it was written in",
            ) from undecodable


@dataclass(frozen=True)
class BinaryFile:
    """A file that is not a text.

    shown   its name in messages
    why     what shows that it is binary
    """

    shown: str
    why: str

    def refusal(self) -> ArgumentError:
        """The error that says so."""
        return ArgumentError(
            "this file is binary, not a text.",
            file=self.shown,
            came=self.why,
            tries="a text file; --encoding NAME if it is one after all",
        )


def text_file(path: Path, shown: str, encoding: str | None, *, doubtful: bool = False) -> TextFile | BinaryFile:
    """A file as text, or the reason why it is binary.

    shown      its name in messages
    encoding   None: it is detected
    doubtful   look for control bytes even if the encoding is known, as in a folder of all kinds of files
    """
    if encoding is None:
        return _with_detected_encoding(path, shown)
    head = next(chunks_of(path, shown), b"")
    why = known_format(head)
    if doubtful and not why and not encoding.startswith(("utf-16", "utf-32")):
        why = "NUL bytes" if 0 in head else control_byte_share(head)
    return BinaryFile(shown, why) if why else TextFile(path, shown, encoding)


def _with_detected_encoding(path: Path, shown: str) -> TextFile | BinaryFile:
    """The file in the encoding that its bytes suggest; a text in none of those that are detected is refused."""
    detection = detect_encoding(lambda: chunks_of(path, shown))
    if detection.encoding:
        return TextFile(path, shown, detection.encoding)
    if detection.binary:
        return BinaryFile(shown, detection.binary)
    raise ArgumentError(
        "the encoding of this text cannot be told.",
        file=shown,
        came=f"{detection.undecodable}, which is not UTF-8",
        expected="UTF-8, UTF-16, GB18030 or Big5: none of them gives a likely text",
        tries="--encoding NAME, for many western texts --encoding cp1252 or latin-1",
    )


def chunks_of(path: Path, shown: str) -> Iterator[bytes]:
    """The bytes of a file, unpacked if it begins as gzip files do, whatever its name."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as handle:
                while chunk := handle.read(CHUNK_BYTES):
                    yield chunk
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ArgumentError(
            "the file is packed by gzip, and damaged or cut.", file=shown, says=error, tries=f"gzip -t {shown}"
        ) from error
    except FileNotFoundError as error:
        raise missing_file(path, shown) from error
    except OSError as error:
        raise ArgumentError("the file cannot be read.", file=shown, says=error.strerror or error) from error


def missing_file(path: Path, shown: str) -> ArgumentError:
    """The error that a file does not exist, with the nearest name in its folder."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ArgumentError("there is no such file.", came=shown, there_is_no_folder=path.parent)
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    return ArgumentError(
        "there is no such file.", came=shown, nearest=path.parent / near[0] if near else None, folder=path.parent
    )
