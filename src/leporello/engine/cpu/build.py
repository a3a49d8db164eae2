"""C built by the machine's compiler and kept in the cache folder: a library per text, found again by its hash.

A library whose content is not what was built is built anew, never loaded.

Environment variables: CC is the compiler, with arguments if need be ("ccache gcc"); LEPORELLO_CFLAGS are flags behind
our own (a later -O1 or -march wins), and part of the hash.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from leporello.engine.cache_folder import folder, kept_path, write_atomically
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


def compiler_refusal() -> EngineRefusal | None:
    """Why nothing can be built on this machine; None if it can."""
    if compiler() is not None:
        return None
    variable = os.environ.get("CC")
    return EngineRefusal(
        f"$CC names a C compiler that does not exist: {variable}."
        if variable
        else "there is no C compiler on this machine.",
        expected="$CC, cc, gcc or clang",
        tries='install gcc or clang (apt install gcc, xcode-select --install); or engine="stepwise"',
    )


def refuse_no_compiler() -> None:
    refusal = compiler_refusal()
    if refusal is not None:
        raise refusal


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


def vector_bytes() -> int:
    """The bytes of the widest vectors that the compiler is told to use."""
    return _vector_bytes(flags())


@functools.cache
def _vector_bytes(given: tuple[str, ...]) -> int:
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
    source = kept_path(name, machine() + text, ".c")
    built, recorded = source.with_suffix(".so"), source.with_suffix(".sha256")
    if not _is_whole(built, recorded):
        _build(text, source, built, recorded)
    return ctypes.CDLL(str(built)), source


def _is_whole(built: Path, recorded: Path) -> bool:
    try:
        return hashlib.sha256(built.read_bytes()).hexdigest() == recorded.read_text(encoding="ascii").strip()
    except OSError:
        return False


def _build(text: str, source: Path, built: Path, recorded: Path) -> None:
    write_atomically(source, text.encode())
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
    write_atomically(recorded, hashlib.sha256(content).hexdigest().encode())
