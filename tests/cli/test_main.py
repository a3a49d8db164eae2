"""The command as it is installed: its own process, its help, and what it says where a package is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from leporello.cli.app import FUNCTIONS, app, help_of
from leporello_command import main, outline
from leporello_command.outline import COMMANDS
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


def test_help_and_version_and_a_wrong_command_are_answered_without_torch() -> None:
    """`leporello --help` takes what typer and rich take to load: a fifth of a second, where torch takes a whole one."""
    for words in ([], ["--help"], ["--version"], ["trian"]):
        program = f"import sys; sys.argv = {['leporello', *words]!r}; from leporello_command import main; main()"
        watched = f"import atexit; atexit.register(lambda: print('torch' in sys.modules)); {program}"
        command = [sys.executable, "-c", f"import sys; {watched}"]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert done.stdout.splitlines()[-1] == b"False", words


def test_the_list_of_commands_is_that_of_the_commands_themselves() -> None:
    summaries = {name: help_of(function).split("\n\n")[0] for name, function in zip(COMMANDS, FUNCTIONS, strict=True)}
    assert summaries == COMMANDS
    assert list(COMMANDS) == [function.__name__ for function in FUNCTIONS]
    assert leporello("--help").output == CliRunner().invoke(outline.app, ["--help"]).output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_every_option_does_without_pythons_types(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    helps = [option.help for option in command.params]
    assert [text for text in helps if not re.fullmatch(r"(?s)([A-Z]|[a-z]+: ).*(\.|\.? \\?\[.+\])", text or "")] == []
    said = leporello(name, "--help").output
    assert [word for word in ("<", ">", "[[", "......") if word in said] == []
    defaults = [found[1] for text in helps if (found := re.search(r"(\[\w+\])$", text))]
    assert [default for default in defaults if default not in said] == []


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("leporello_command.", "leporello.cli.", f"{package}."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "argv", ["leporello", "draw", "elman"])
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
    monkeypatch.setattr(sys, "argv", ["leporello", "draw", "elman"])
    with pytest.raises(ModuleNotFoundError):
        main()
