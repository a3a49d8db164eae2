"""The commands in docs/commands.md work as they stand there, and its tables name what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from leporello.cli.app import app
from leporello.cli.draw import FILE_WRITERS
from tests.cli.invoke import drawn

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "commands.md").read_text(encoding="utf-8")
LANGUAGE = (DOCS / "language.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_runs(line: str, folder: Path) -> None:
    program, *words = shlex.split(line)
    assert program == "leporello"
    drawn(*words)


@pytest.mark.parametrize("picture", [["draw", "elman"], ["draw", "elman", "--unfold", "3"]])
def test_a_drawing_of_the_page_is_the_one_printed(picture: list[str]) -> None:
    assert drawn(*picture) in PAGE


def test_the_flow_of_the_page_is_the_one_printed() -> None:
    assert f"```\n{drawn('flow', 'elman:3,32,2', '--length', 60, '--batch', 4)}```" in PAGE


def test_the_tables_name_every_option_and_suffix() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    options = {name for command in commands for option in command.params for name in option.opts if name[:2] == "--"}
    assert [name for name in sorted(options) if f"| `{name}" not in PAGE + LANGUAGE] == []
    assert [suffix for suffix in FILE_WRITERS if f"| `{suffix}` |" not in PAGE] == []
