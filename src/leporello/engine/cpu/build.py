"""C built by the machine's compiler and kept in the user's cache: a library per text, found again by its hash.

Knows compilers and files; knows nothing of kernels. A library is written under another name first and renamed, so that
nobody ever sees half of one; one whose content is not what was built is built anew, never loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from leporello.errors import EngineRefusal

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fopenmp-simd",
    "-fPIC",
    "-shared",
    "-pthread",
)
NEEDED = ("-march=native", "-fopenmp-simd")  # left out where a compiler does not know them


def folder() -> Path:
    """Where libraries are kept: LEPORELLO_CACHE, else `leporello` in the user's cache folder."""
    told = os.environ.get("LEPORELLO_CACHE")
    if told:
        return Path(told)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "leporello"


def safe_folder() -> Path:
    """The same, made if it is missing, refused if others can write to it."""
    path = folder()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise EngineRefusal(
            "the cache folder can be written to by others, and what is built there is run.",
            folder=str(path),
            tries=f"chmod 700 {path}; or set LEPORELLO_CACHE to a folder of your own",
        )
    return path


def contents() -> list[Path]:
    """What was built: texts, libraries and their hashes."""
    home = folder()
    kinds = (".c", ".so", ".sha256")
    return sorted(path for path in home.iterdir() if path.suffix in kinds) if home.is_dir() else []


def clear() -> None:
    """Remove what was built, and nothing else that may lie in the folder."""
    for path in contents():
        path.unlink(missing_ok=True)


@functools.cache
def compiler() -> str | None:
    """The machine's C compiler: $CC, else cc, gcc or clang."""
    told = os.environ.get("CC")
    for name in [told] if told else ["cc", "gcc", "clang"]:
        found = shutil.which(name)
        if found:
            return found
    return None


def refuse_no_compiler() -> None:
    if compiler() is None:
        raise EngineRefusal(
            "there is no C compiler on this machine.",
            expected="$CC, cc, gcc or clang",
            tries='install gcc or clang (apt install gcc, xcode-select --install); or engine="stepwise"',
        )


@functools.cache
def machine() -> str:
    """What a library depends on beside its text: the compiler, its flags and the processor."""
    path = compiler()
    version = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=False).stdout
    return "\n".join([str(path), version, " ".join(FLAGS), platform.machine(), _processor()])


def _processor() -> str:
    """The processor's abilities, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "".join(sorted({line for line in file if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.processor()


@functools.cache
def wide_bytes() -> int:
    """The bytes of the machine's widest vectors."""
    told = subprocess.run(
        [str(compiler()), "-march=native", "-dM", "-E", "-x", "c", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    if "__AVX512F__" in told:
        return 64
    return 32 if "__AVX__" in told else 16


def library(text: str, name: str = "kernel") -> tuple[ctypes.CDLL, Path]:
    """The library of a C text, built unless it is in the cache; and the path of the text."""
    refuse_no_compiler()
    try:
        return _library(text, name)
    except OSError as error:
        raise EngineRefusal(
            "a kernel could not be built or loaded.",
            folder=str(folder()),
            says=f"{type(error).__name__}: {error}",
            tries="set LEPORELLO_CACHE to a folder in which files can be written and run",
        ) from error


def _library(text: str, name: str) -> tuple[ctypes.CDLL, Path]:
    home = safe_folder()
    key = hashlib.sha256((machine() + text).encode()).hexdigest()[:24]
    stem = home / f"{''.join(c if c.isalnum() else '_' for c in name)}-{key}"
    source, built, recorded = stem.with_suffix(".c"), stem.with_suffix(".so"), stem.with_suffix(".sha256")
    if not _is_whole(built, recorded):
        _build(text, source, built, recorded)
    return ctypes.CDLL(str(built)), source


def _is_whole(built: Path, recorded: Path) -> bool:
    try:
        return hashlib.sha256(built.read_bytes()).hexdigest() == recorded.read_text(encoding="ascii").strip()
    except OSError:
        return False


def _build(text: str, source: Path, built: Path, recorded: Path) -> None:
    _write(source, text.encode())
    with tempfile.TemporaryDirectory(dir=source.parent, prefix="building-") as room:
        made = Path(room) / "made.so"
        run = subprocess.run(
            [str(compiler()), *FLAGS, "-o", str(made), str(source), "-lm"], capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise EngineRefusal(
                "the C compiler failed.",
                compiler=str(compiler()),
                source=str(source),
                says="\n".join(run.stderr.strip().splitlines()[:12]) or f"exit status {run.returncode}",
            )
        content = made.read_bytes()
        os.replace(made, built)
    _write(recorded, hashlib.sha256(content).hexdigest().encode())


def _write(path: Path, content: bytes) -> None:
    """Under another name first, then renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, path)
