"""Write a file whole or not at all: what was there stays until the new one is complete and on the disk.

Knows paths and bytes; knows nothing of what they hold.
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


def write_whole(path: Path, contents: bytes) -> None:
    """Write bytes to a file that gets its name when they are all there."""
    with writing_whole(path) as handle:
        handle.write(contents)


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into; it takes the given name if all goes well, and is removed if not."""
    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    written = path.with_name(f".{secrets.token_hex(6)}.tmp")  # short: a long name may leave no room for more
    try:
        with written.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if path.exists():
            shutil.copymode(path, written)
        written.replace(path)
        _settle(path.parent)
    except OSError as error:
        raise LeporelloError("the file could not be written.", file=path, says=error.strerror or error) from error
    finally:
        written.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what was being written when a process was killed; nobody else may be writing there."""
    for left in folder.glob(f".{'[0-9a-f]' * 12}.tmp"):
        left.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """The new name, too, is on the disk when this is done, where folders can be asked for that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
