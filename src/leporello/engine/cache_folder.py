"""The cache folder of generated code: C sources, built libraries with their hashes, and the text of sweeps.

Its path is LEPORELLO_CACHE if that is set; else it is `leporello` in the user's cache folder: on Linux XDG_CACHE_HOME
or ~/.cache, elsewhere that of platformdirs, if installed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path

from leporello.atomic_write import replacing
from leporello.errors import EngineRefusal

KEPT_SUFFIXES = (".c", ".so", ".sha256", ".py", ".cu", ".cubin", ".plan")


def folder() -> Path:
    """The path of the cache folder, which may not exist yet."""
    variable = os.environ.get("LEPORELLO_CACHE")
    if variable:
        return Path(variable)
    if sys.platform != "linux":  # there platformdirs has the same rule, and takes a hundredth of a second to load
        try:
            from platformdirs import user_cache_path
        except ImportError:
            pass
        else:
            return user_cache_path("leporello", appauthor=False)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "leporello"


def safe_folder() -> Path:
    """The cache folder, created if it is missing; refused if others own it or can write to it, as its code is run."""
    path = folder()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise EngineRefusal(
            "the cache folder can be written to by others, and what is built there is run.",
            folder=str(path),
            tries=f"chmod 700 {path}; or set LEPORELLO_CACHE to a folder of your own",
        )
    return path


def contents() -> list[Path]:
    """The files in the cache folder that are ours, by their suffix."""
    home = folder()
    return sorted(path for path in home.iterdir() if path.suffix in KEPT_SUFFIXES) if home.is_dir() else []


def clear() -> None:
    """Remove our files, and nothing else that may be in the folder."""
    for path in contents():
        path.unlink(missing_ok=True)


def kept_path(name: str, key: str, suffix: str) -> Path:
    """The path of a generated file in the cache folder: `name` for human readers, a hash of `key`, and the suffix.

    key   all that the content depends on, as text
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return safe_folder() / f"{''.join(c if c.isalnum() else '_' for c in name)}-{digest}{suffix}"


def write_kept(path: Path, content: bytes) -> None:
    """Write a file atomically: another process sees all of it or nothing."""
    with replacing(path, durable=False) as temporary:
        temporary.write_bytes(content)
