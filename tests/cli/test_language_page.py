"""The commands in docs/language.md and README.md work as they stand there.

Those in blocks of `sh` are run, on a small text and a small run. Those in blocks of `console` train for minutes: their
words are read as the command would read them, and the configuration and the network are made.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import typer

import leporello as lp
from leporello.cli.app import app
from leporello.language.config import Config, config_of
from leporello.language.model.network import network_of
from leporello.language.run.folder import Run
from leporello.language.training.teacher_forcing import forcing_of
from tests.cli.invoke import leporello
from tests.language.tiny import TEXT, tiny_run  # noqa: F401

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


SHORT = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
LONG = [
    line[2:].split("-m ")[-1]  # behind `torchrun ... -m`, too
    for block in blocks(PAGE, "console") + blocks(README, "console")
    for line in block.splitlines()
    if line.startswith("$ ") and "leporello " in line
]


@pytest.fixture
def shelf(tiny: Run, folder: Path) -> Path:
    """The current folder, with the texts, the runs and the module that the page names."""
    for name in ("shakespeare.txt", "timemachine.txt"):
        (folder / name).write_text(TEXT, encoding="utf-8")
    for name in ("shakespeare-lstm", "shakespeare-gru", "short"):
        shutil.copytree(tiny.path, folder / "runs" / name)
    (module,) = [block for block in blocks(PAGE, "python") if block.startswith("# my_model.py\n")]
    (folder / "my_model.py").write_text(module, encoding="utf-8")
    return folder


@pytest.mark.parametrize("line", SHORT)
def test_a_short_command_of_the_page_runs(line: str, shelf: Path) -> None:
    program, *words = shlex.split(line)
    assert program == "leporello"
    result = leporello(*words)
    assert result.exit_code == 0, result.output
    assert result.stdout


@pytest.mark.parametrize("line", LONG)
def test_a_long_command_of_the_pages_would_run(line: str, shelf: Path) -> None:
    program, name, *words = shlex.split(line, comments=True)
    assert program == "leporello"
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = command.make_context(name, words).params
    if name == "resume":
        assert Run.open(given["run"])
        return
    keys = {field.name for field in dataclasses.fields(Config)} - {"text"}
    config = config_of({key: value for key, value in given.items() if key in keys and value is not None})
    forcing_of(config.forcing)
    assert network_of(config, 28).cell.size == 28
    assert [text for text in given["text"] or () if not (shelf / text).is_file()] == []


def test_the_drawing_of_the_page_is_the_one_printed() -> None:
    net = network_of(Config(cell="gru", hidden=16), 13)
    assert f"```\n{lp.fold(net, torch.zeros(1, 1, dtype=torch.int64))}```" in PAGE


def test_the_pages_have_commands_of_both_kinds() -> None:
    assert {shlex.split(line)[1] for line in SHORT} == {"baseline", "generate", "evaluate", "score", "runs", "compare"}
    assert {shlex.split(line, comments=True)[1] for line in LONG} == {"train", "resume"}
