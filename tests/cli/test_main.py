"""The command as it is installed: its own process, its help, and what it says where a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from leporello.cli.main import main
from tests.cli.invoke import drawn, leporello


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-m", "leporello", *words]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, timeout=120, check=False)


def test_it_runs_as_a_module_and_prints_ascii_where_only_that_can_be_shown(folder: Path) -> None:
    done = run("draw", "my_model:Leaky:3,5", "--unfold", "2", PYTHONIOENCODING="ascii", COLUMNS="30")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"h" in done.stdout
    assert b"\x1b" not in done.stdout


def test_its_errors_go_to_standard_error(folder: Path) -> None:
    done = run("draw", "lsmt", "--out", "net.svg")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: no built-in cell is called 'lsmt'.")
    assert not Path("net.svg").exists()


def test_the_command_is_installed() -> None:
    entry = next(entry for entry in metadata.entry_points(group="console_scripts") if entry.name == "leporello")
    assert entry.load() is main


def test_it_tells_its_version() -> None:
    assert drawn("--version") == f"leporello {metadata.version('leporello')}\n"


def test_alone_it_lists_its_commands() -> None:
    said = leporello().output
    assert "draw" in said
    assert "explain" in said


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("leporello.cli.", f"{package}."))]:
        if name != "leporello.cli.main":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert f"the package {package}" in said
    assert "pip install 'leporello[cli]'" in said


def test_a_mistake_of_ours_is_not_taken_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "leporello.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "leporello.cli.draw", None)
    with pytest.raises(ModuleNotFoundError):
        main()
