"""The cache of built libraries: whole or not at all, never one that was changed, in a folder of the user's own."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import leporello as lp
from leporello.engine import cache_folder, choice
from leporello.engine.cpu import build, native

TEXT = "int answer(void) { return 42; }\n"

pytestmark = pytest.mark.kernels


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEPORELLO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_library_is_built_once(folder: Path) -> None:
    first, source = build.library(TEXT, "once")
    assert first.answer() == 42
    assert source.read_text() == TEXT
    built = source.with_suffix(".so")
    before = built.stat().st_mtime_ns
    build.library(TEXT, "once")
    assert built.stat().st_mtime_ns == before


def test_the_folder_is_the_users_alone(folder: Path) -> None:
    build.library(TEXT)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(lp.errors.EngineRefusal, match="can be written to by others") as refusal:
        build.library(TEXT)
    assert "chmod 700" in str(refusal.value)


def test_a_changed_library_is_built_anew(folder: Path) -> None:
    _, source = build.library(TEXT, "changed")
    built = source.with_suffix(".so")
    content = built.read_bytes()
    built.unlink()  # it is loaded: a new file in its place
    built.write_bytes(b"something else")
    build.library(TEXT, "changed")
    assert built.read_bytes() == content


def test_nothing_half_written_is_left_behind(folder: Path) -> None:
    build.library(TEXT)
    assert {path.suffix for path in folder.iterdir()} == {".c", ".so", ".sha256"}


def test_a_text_that_does_not_compile_says_what_the_compiler_says(folder: Path) -> None:
    with pytest.raises(lp.errors.EngineRefusal, match="the C compiler failed") as refusal:
        build.library("int answer(void) { return nothing; }\n", "wrong")
    assert "nothing" in str(refusal.value)
    assert str(folder) in str(refusal.value)  # the path of the source
    assert not list(folder.glob("*.so"))


def test_a_folder_that_cannot_be_made_is_said_and_auto_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LEPORELLO_CACHE", str(tmp_path / "file" / "cache"))
    net, x = lp.Recurrent(lp.IndRNN(3, 4), engine="cpu"), torch.zeros(2, 1, 3)
    with pytest.raises(lp.errors.EngineRefusal, match="could not be built") as refusal:
        net(x)
    assert "LEPORELLO_CACHE" in str(refusal.value)
    net = lp.Recurrent(lp.IndRNN(3, 4))
    net(x)
    assert "not cpu: a kernel could not be built" in net.explain(x)


def test_what_could_not_be_built_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runtime", "build_ahead"):  # as in a new process
        monkeypatch.setattr(native, name, functools.cache(getattr(native, name).__wrapped__))
    (tmp_path / "file").write_text("in the way")
    with monkeypatch.context() as within:
        within.setenv("LEPORELLO_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(lp.errors.EngineRefusal, match="could not be built"):
            native.runtime()
        native.build_ahead(torch.float32)
    assert native.runtime().run_parallel is not None


def test_the_cache_folder_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEPORELLO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder.folder() == Path("/somewhere/leporello")
    monkeypatch.setenv("LEPORELLO_CACHE", "/elsewhere")
    assert cache_folder.folder() == Path("/elsewhere")


@pytest.mark.slow
def test_processes_that_race_for_a_library_all_get_it(folder: Path) -> None:
    code = f"from leporello.engine.cpu.build import library; print(library({TEXT!r}, 'race')[0].answer())"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ.copy())
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in running] == ["42"] * 2


@pytest.fixture
def _other_compiler() -> Iterator[None]:
    """What was found out about the machine's compiler is forgotten, before and after."""
    known: list[Any] = [build.compiler, build._flags, build._macros, build._version, build._vector_bytes]
    for function in known:
        function.cache_clear()
    yield
    for function in known:
        function.cache_clear()


@pytest.mark.usefixtures("_other_compiler")
def test_the_users_flags_stand_behind_ours_and_keep_libraries_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#ifndef ANSWER\n#define ANSWER 42\n#endif\nint answer(void) { return ANSWER; }\n"
    assert build.library(text)[0].answer() == 42
    monkeypatch.setenv("LEPORELLO_CFLAGS", "-DANSWER=43 -O1")
    assert build.flags()[-2:] == ("-DANSWER=43", "-O1")
    assert build.library(text)[0].answer() == 43
    assert len(list(folder.glob("*.so"))) == 2


@pytest.mark.usefixtures("_other_compiler")
def test_the_compiler_may_have_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "env LEPORELLO=1 cc")
    assert build.compiler() == shutil.which("env")
    assert build.library(TEXT)[0].answer() == 42
    assert build.vector_bytes() in (16, 32, 64)


@pytest.mark.usefixtures("_other_compiler")
def test_flags_that_a_compiler_does_not_know_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    strict = folder / "strict"
    strict.write_text('#!/bin/sh\nfor word; do [ "$word" = -march=native ] && exit 1; done\nexec cc "$@"\n')
    strict.chmod(0o700)
    monkeypatch.setenv("CC", str(strict))
    assert "-march=native" not in build.flags()
    assert "-fopenmp-simd" in build.flags()
    assert build.library(TEXT)[0].answer() == 42
    assert build.vector_bytes() == 16 or "__AVX__" in str(build._macros(build.flags()))


@pytest.mark.usefixtures("_other_compiler")
def test_a_compiler_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/gcc -m64")
    with pytest.raises(lp.errors.EngineRefusal, match="does not exist: /nowhere/gcc -m64"):
        lp.Recurrent(lp.GRU(3, 4), engine="cpu")(torch.zeros(2, 1, 3))


@pytest.fixture
def _without_compiler(_other_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choice, "_warned", set())


@pytest.mark.usefixtures("_without_compiler")
def test_without_a_compiler_the_engine_says_how_to_get_one() -> None:
    with pytest.raises(lp.errors.EngineRefusal, match="no C compiler") as refusal:
        lp.Recurrent(lp.GRU(3, 4), engine="cpu")(torch.zeros(2, 1, 3))
    assert "install gcc" in str(refusal.value)


@pytest.mark.usefixtures("_without_compiler")
def test_without_a_compiler_auto_goes_on_and_says_so_once() -> None:
    net, x = lp.Recurrent(lp.GRU(3, 4)), torch.zeros(2, 1, 3)
    with pytest.warns(UserWarning, match="no C compiler on this machine.*'stepwise' runs what 'cpu' would run faster"):
        net(x)
    told = net.explain(x)  # warnings are errors from here on
    assert "engine   stepwise" in told
    assert "not cpu: there is no C compiler" in told
    lp.Recurrent(lp.RNN(3, 4))(x)


@pytest.mark.usefixtures("_without_compiler")
def test_without_a_compiler_nothing_is_said_where_cpu_would_not_run_anyway() -> None:
    x = torch.zeros(2, 3, 4)
    lp.Recurrent(lp.GRU(4, 4), engine="stepwise")(x)
    lp.Recurrent(lambda x, h: (h, h.median(-1, keepdim=True).values + x))(x, torch.zeros(3, 4))  # not covered
    lp.Recurrent(lambda x, h: (h, h + x.mean(0)))(x, torch.zeros(3, 4))  # rows meet
