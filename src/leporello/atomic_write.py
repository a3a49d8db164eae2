"""Write a file atomically: what was there stays until the new file is complete and on the disk.

The new file is written under a temporary name in the same folder, synced, given the permissions of the old one, and
renamed. A killed process leaves at most a temporary file, which `remove_temporary_files` deletes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from leporello.errors import LeporelloError


def write_atomically(path: Path, contents: bytes | str) -> None:
    """Write bytes, or text as UTF-8, to a file."""
    with open_atomically(path) as handle:
        handle.write(contents.encode() if isinstance(contents, str) else contents)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write into. It replaces `path` when the block ends, and is removed if the block raises."""
    with _replacing(path) as temporary, temporary.open("xb") as handle:
        yield handle


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files of killed processes. No other process may be writing into the folder."""
    for temporary in folder.glob(f".{'[0-9a-f]' * 12}.tmp"):
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path in the folder of `path`, for a file that replaces it when the block ends; errors are OSErrors.

    durable   whether the new file is brought to the disk first; not needed for what can be made again, such as a cache
    """
    path = Path(os.path.realpath(path))  # a symbolic link stays one: its target is replaced
    temporary = path.with_name(f".{secrets.token_hex(6)}.tmp")  # short: names have a largest length
    try:
        yield temporary
        if durable:
            _sync(temporary, os.O_RDWR)
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
        if durable:
            with contextlib.suppress(OSError):  # some file systems cannot sync a folder
                _sync(path.parent, os.O_RDONLY)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """As `replacing`; an OSError, also one of the block, becomes a LeporelloError that names the file."""
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise LeporelloError(
            "the file could not be written.", file=Path(os.path.realpath(path)), says=error.strerror or error
        ) from error


def _sync(path: Path, flags: int) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
