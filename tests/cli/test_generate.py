"""`leporello generate`: text as a network writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leporello.language.model.language_model import LanguageModel
from leporello.language.run.folder import Run
from tests.cli.invoke import drawn, leporello, refused
from tests.language.tiny import TEXT, tiny_run  # noqa: F401


def test_a_text_begins_with_its_prompt_and_is_repeated_by_its_seed(tiny: Run) -> None:
    words = ("generate", tiny.path, "--prompt", "She s", "--length", 25, "--seed", 4, "--temperature", 1)
    said = drawn(*words)
    assert said == f"She s{LanguageModel.load(tiny.path).generate('She s', length=25, seed=4)}\n"
    assert len(said) == 5 + 25 + 1
    assert set(said) <= {*TEXT, "\ufffd"}


def test_nothing_is_written_where_nothing_is_asked_for(tiny: Run) -> None:
    assert drawn("generate", tiny.path, "--prompt", "sea", "--length", 0) == "sea\n"


def test_a_prompt_with_unknown_characters_is_told(tiny: Run) -> None:
    result = leporello("generate", tiny.path, "--prompt", "She 光", "--length", 0)
    assert result.exit_code == 0
    assert result.stdout == "She 光\n"
    assert result.stderr == "the network does not know '光': it reads the unknown symbol instead\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", -1], ["'length' is no count", "-1", "0 or more"]),
        (["--temperature", -1], ["'temperature' is out of range", "-1"]),
        (["--temperature", "nan"], ["'temperature' is out of range"]),
        (["--top-k", 0], ["'top_k' is out of range", "at least 1"]),
        (["--top-p", 1.5], ["'top_p' is out of range", "up to 1"]),
        (["--seed", 2**70], ["'seed' is no seed"]),
        (["--which", "first"], ["names no checkpoint"]),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_written(
    options: list[object], words: list[str], tiny: Run
) -> None:
    said = refused("generate", tiny.path, "--prompt", "sea", *options)
    assert [word for word in words if word not in said] == []


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    assert "there is no such run" in refused("generate", tmp_path / "nothing")
    assert "the folder holds no run" in refused("generate", tmp_path)
