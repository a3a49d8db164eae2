"""Write a file whole or not at all: what was there stays until the new one is complete.

Knows paths and bytes; knows nothing of what they hold.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from collections.abc import Collection
from pathlib import Path

from leporello.errors import ArgumentError, LeporelloError


def writable(file: Path, suffixes: Collection[str], example: str = "--out picture.svg") -> Path:
    """The path, if it can be written: asked before the work is done.

    example   of how a file is named
    """
    if file.suffix.lower() not in suffixes:
        raise ArgumentError(
            f"'{file.suffix}' tells no format." if file.suffix else "the file has no suffix to tell its format.",
            came=file,
            expected=", ".join(suffixes),
            tries=example,
        )
    path = Path(os.path.realpath(file))  # a link stays one: what it points to is written
    try:
        _refuse_place(path)
    except OSError as error:
        raise ArgumentError("this file cannot be written.", came=file, says=error.strerror or error) from error
    return path


def _refuse_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise ArgumentError(
            "there is no such folder to write into.",
            came=path.parent,
            tries=f"mkdir -p {shlex.quote(str(path.parent))}",
        )
    if path.is_dir():
        raise ArgumentError("this is a folder, not a file.", came=path, tries="the name of a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentError("this file may not be written.", came=path, tries="another name or folder")


def write(path: Path, contents: bytes) -> None:
    """Write beside it under another name, then rename."""
    written = path.with_name(f".{secrets.token_hex(6)}.tmp")  # short: a long name may leave no room for more
    try:
        with written.open("xb") as handle:
            handle.write(contents)
            handle.flush()
            os.fsync(handle.fileno())
        if path.exists():
            shutil.copymode(path, written)
        written.replace(path)
    except OSError as error:
        raise LeporelloError("the file could not be written.", file=path, says=error.strerror or error) from error
    finally:
        written.unlink(missing_ok=True)
