"""C built by the machine's compiler and kept in the user's cache: a library per text, found again by its hash.

Knows compilers and files; knows nothing of kernels. A library is written under another name first and renamed, so that
nobody ever sees half of one; one whose content is not what was built is built anew, never loaded.

What the environment says: CC is the compiler, with arguments if need be ("ccache gcc"); LEPORELLO_CACHE the folder in
which libraries are kept; LEPORELLO_CFLAGS flags for the compiler behind our own (a later -O1 or -march stands), with
which libraries are kept apart from those without.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from leporello.errors import EngineRefusal

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-pthread",
)
WISHED = (
    "-march=native",
    "-mprefer-vector-width=512",  # where there are such: some compilers take half of one by themselves
    "-fopenmp-simd",
    "-Werror=int-conversion",
    "-Werror=incompatible-pointer-types",
)  # left out where a compiler does not know them


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
    """The path of the machine's C compiler: $CC, else cc, gcc or clang."""
    told = shlex.split(os.environ.get("CC", ""))[:1]
    found = (shutil.which(name) for name in told or ["cc", "gcc", "clang"])
    return next((path for path in found if path), None)


def _command() -> tuple[str, ...]:
    """The compiler with the arguments that $CC gives it."""
    refuse_no_compiler()
    return (str(compiler()), *shlex.split(os.environ.get("CC", ""))[1:])


def why_no_compiler() -> str | None:
    """Why nothing can be built, in a sentence; None if it can."""
    if compiler() is not None:
        return None
    told = os.environ.get("CC")
    return f"$CC names a C compiler that does not exist: {told}." if told else "there is no C compiler on this machine."


def refuse_no_compiler() -> None:
    why = why_no_compiler()
    if why is not None:
        raise EngineRefusal(
            why,
            expected="$CC, cc, gcc or clang",
            tries='install gcc or clang (apt install gcc, xcode-select --install); or engine="stepwise"',
        )


def flags() -> tuple[str, ...]:
    """What the compiler is told: our own, of the wished those that it knows, and the user's."""
    return _flags(os.environ.get("LEPORELLO_CFLAGS", ""))


@functools.cache
def _flags(told: str) -> tuple[str, ...]:
    all_known = _macros((*FLAGS, *WISHED)) is not None
    known = WISHED if all_known else tuple(flag for flag in WISHED if _macros((*FLAGS, flag)) is not None)
    return (*FLAGS, *known, *shlex.split(told))


@functools.cache
def _macros(given: tuple[str, ...]) -> str | None:
    """What the compiler says of the machine it builds for; None if it does not know these flags."""
    run = subprocess.run(
        [*_command(), *given, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=False
    )
    return None if run.returncode else run.stdout


def machine() -> str:
    """What a library depends on beside its text: the compiler, its flags and the processor."""
    return "\n".join([*_command(), _version(), " ".join(flags()), platform.machine(), processor()])


@functools.cache
def _version() -> str:
    return subprocess.run([*_command(), "--version"], capture_output=True, text=True, check=False).stdout


@functools.cache
def processor() -> str:
    """The processor's abilities, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "".join(
                sorted({line for line in file if line.startswith(("flags", "Features", "model name", "vendor_id"))})
            )
    except OSError:
        return platform.processor()


def wide_bytes() -> int:
    """The bytes of the widest vectors that the compiler is told to use."""
    return _wide_bytes(flags())


@functools.cache
def _wide_bytes(given: tuple[str, ...]) -> int:
    told = _macros(given) or ""
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
            [*_command(), *flags(), "-o", str(made), str(source), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise EngineRefusal(
                "the C compiler failed.",
                compiler=shlex.join([*_command(), *flags()]),
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
