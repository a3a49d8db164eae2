"""What can be read only once, standard input and pipes, written to a temporary file as UTF-8, to be read again.

The file vanishes with whoever holds the spool. Knows streams; knows nothing of what the text is for.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from leporello.errors import ArgumentError, LeporelloError
from leporello.language.text.reading import Binary, TextFile, text_in


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
