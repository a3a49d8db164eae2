"""C sources compiled by the machine's compiler, and the libraries cached in the cache folder by a hash of their source.

A cached library whose content does not match its recorded hash is built again, never loaded.

Environment variables: CC is the compiler, with arguments if needed ("ccache gcc"); LEPORELLO_CFLAGS are flags appended
to ours (a later -O1 or -march wins), and part of the hash.
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
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from leporello.engine.cache_folder import folder, kept_path, write_kept
from leporello.errors import EngineRefusal
from leporello.loop.phases import timed_phase

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
OPTIONAL_FLAGS = (
    "-march=native",
    "-mprefer-vector-width=512",  # where the processor has them: some compilers use half of such a vector by default
    "-fopenmp-simd",
    "-Werror=int-conversion",
    "-Werror=incompatible-pointer-types",
)  # left out where the compiler does not know them


@functools.cache
def compiler() -> str | None:
    """The path of the machine's C compiler: $CC if it is set, else cc, gcc or clang; None if there is none."""
    requested = shlex.split(os.environ.get("CC", ""))[:1]
    paths = (shutil.which(name) for name in requested or ["cc", "gcc", "clang"])
    return next((path for path in paths if path), None)


def _command() -> tuple[str, ...]:
    """The words of the compiler's command: its path, and the arguments in $CC; refused where there is none."""
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
    """Raise if nothing can be built on this machine."""
    refusal = compiler_refusal()
    if refusal is not None:
        raise refusal


def flags() -> tuple[str, ...]:
    """The compiler's flags: ours, the optional ones that it knows, and the user's."""
    return _flags(os.environ.get("LEPORELLO_CFLAGS", ""))


@functools.cache
def _flags(user_flags: str) -> tuple[str, ...]:
    all_known = _macros((*FLAGS, *OPTIONAL_FLAGS)) is not None
    known = tuple(flag for flag in OPTIONAL_FLAGS if all_known or _macros((*FLAGS, flag)) is not None)
    return (*FLAGS, *known, *shlex.split(user_flags))


@functools.cache
def _macros(flags: tuple[str, ...]) -> str | None:
    """The macros that the compiler predefines with these flags; None if it does not know them."""
    run = subprocess.run(
        [*_command(), *flags, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=False
    )
    return None if run.returncode else run.stdout


def machine() -> str:
    """What a library depends on apart from its source, as text for the hash: compiler, flags and processor."""
    return "\n".join([*_command(), _version(), " ".join(flags()), platform.machine(), processor()])


@functools.cache
def _version() -> str:
    return subprocess.run([*_command(), "--version"], capture_output=True, text=True, check=False).stdout


@functools.cache
def processor() -> str:
    """The processor's model and instruction sets, as far as the system reports them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "".join(
                sorted({line for line in file if line.startswith(("flags", "Features", "model name", "vendor_id"))})
            )
    except OSError:
        return platform.processor()


def vector_bytes() -> int:
    """The bytes of the widest vectors for which the compiler generates code."""
    return _vector_bytes(flags())


@functools.cache
def _vector_bytes(flags: tuple[str, ...]) -> int:
    macros = _macros(flags) or ""
    if "__AVX512F__" in macros:
        return 64
    return 32 if "__AVX__" in macros else 16


def library_ahead(text: str | Callable[[], str], name: str = "kernel") -> Callable[[], tuple[ctypes.CDLL, Path]]:
    """Begin to build the library of a C source in a thread; the returned function waits for it, and is `library`.

    text   of the C source, or what returns it, called in that thread: it may ask the compiler
    """
    refuse_no_compiler()
    built: Future[tuple[ctypes.CDLL, Path]] = Future()
    process = os.getpid()

    def build_here() -> tuple[ctypes.CDLL, Path]:
        return library(text if isinstance(text, str) else text(), name)

    def build() -> None:
        try:
            built.set_result(build_here())
        except BaseException as error:
            built.set_exception(error)

    threading.Thread(target=build, name=f"leporello builds {name}").start()

    def wait() -> tuple[ctypes.CDLL, Path]:
        with timed_phase("the C compiler"):
            forked = os.getpid() != process and not built.done()  # the child of a fork does not have the thread
            return build_here() if forked else built.result()

    return wait


def library(text: str, name: str = "kernel") -> tuple[ctypes.CDLL, Path]:
    """The library of a C source, built unless it is in the cache, and the path of the source.

    text   of the C source
    name   which the names of its files begin with
    """
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
    if not _is_intact(built, recorded):
        _build(text, source, built, recorded)
    return ctypes.CDLL(str(built)), source


def _is_intact(built: Path, recorded: Path) -> bool:
    """Whether a library exists and matches its recorded hash."""
    try:
        return hashlib.sha256(built.read_bytes()).hexdigest() == recorded.read_text(encoding="ascii").strip()
    except OSError:
        return False


def _build(text: str, source: Path, built: Path, recorded: Path) -> None:
    """Write the source, compile it, and record the hash of the library."""
    write_kept(source, text.encode())
    with tempfile.TemporaryDirectory(dir=source.parent, prefix="building-") as build_folder:
        compiled = Path(build_folder) / "made.so"
        compile_c(source, compiled, flags())
        content = compiled.read_bytes()
        os.replace(compiled, built)
    write_kept(recorded, hashlib.sha256(content).hexdigest().encode())


def compile_c(source: Path, compiled: Path, flags: Sequence[str]) -> None:
    """Compile a C file with the machine's compiler and these flags, and link it with libm unless they say -c."""
    libraries = [] if "-c" in flags else ["-lm"]
    run = subprocess.run(
        [*_command(), *flags, "-o", str(compiled), str(source), *libraries],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise EngineRefusal(
            "the C compiler failed.",
            compiler=shlex.join([*_command(), *flags]),
            source=str(source),
            says="\n".join(run.stderr.strip().splitlines()[:12]) or f"exit status {run.returncode}",
        )
