"""`leporello resume`: what it goes on with, and what is too damaged to go on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leporello.cli import training_view
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.markdown_report import Flow
from leporello.language.run.checkpoint_file import read_checkpoint, write_checkpoint
from leporello.language.run.folder import Run
from tests.cli.invoke import drawn, refused
from tests.language.tiny import configured, tiny_run  # noqa: F401


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip(file: Path) -> None:
    contents = bytearray(file.read_bytes())
    contents[-5] ^= 1
    file.write_bytes(contents)


def versioned(run: Run) -> None:
    run.data_file.write_text(json.dumps({**json.loads(run.data_file.read_text()), "version": 99}))


def foreign(run: Run) -> None:
    shutil.copy(run.vocabulary_file, run.last_file)


def renamed(run: Run) -> None:
    text = run.vocabulary_file.read_text()
    run.vocabulary_file.write_text(text.replace("S", "Z", 1))


DAMAGES: dict[str, tuple[Callable[[Run], object], list[str]]] = {
    "another version": (versioned, ["the run folder has another version", "came      99", "the version of leporello"]),
    "a cut checkpoint": (lambda run: cut(run.last_file), ["the checkpoint is cut or damaged", "copy best.safetensors"]),
    "a damaged checkpoint": (lambda run: flip(run.last_file), ["not those written", "copy best.safetensors"]),
    "a foreign checkpoint": (foreign, ["the checkpoint is cut or damaged", "last.safetensors"]),
    "a cut vocabulary": (lambda run: cut(run.vocabulary_file), ["vocabulary.json"]),
    "a changed vocabulary": (renamed, ["the vocabulary is damaged", "vocabulary.json"]),
    "cut tokens": (lambda run: cut(run.tokens_file), ["the tokens are cut", "tokens.bin", "expected"]),
    "damaged tokens": (lambda run: flip(run.tokens_file), ["the tokens are damaged", "tokens.bin"]),
    "no tokens": (lambda run: run.tokens_file.unlink(), ["the tokens cannot be read", "tokens.bin"]),
    "damaged facts": (lambda run: run.data_file.write_text("{}"), ["damaged", "data.json"]),
    "facts of nothing": (lambda run: run.write_data({"corpus": {}}), ["the record of the tokens is damaged", "folder"]),
    "a misspelt key": (lambda run: configured(run, "hidden", "8\nhiden = 9"), ["no key 'hiden'", "config.toml"]),
    "another network": (lambda run: configured(run, "hidden", "9"), ["another network", "came", "expected"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_refused_by_name_and_nothing_is_changed(damage: str, tiny: Run) -> None:
    harm, words = DAMAGES[damage]
    harm(tiny)
    before = {file.name: file.read_bytes() for file in tiny.path.iterdir()}
    said = refused("resume", tiny.path)
    assert [word for word in words if word not in said] == []
    assert {file.name: file.read_bytes() for file in tiny.path.iterdir()} == before


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    assert "there is no such run" in refused("resume", tmp_path / "nothing")
    assert "the folder holds no run" in refused("resume", tmp_path)


def test_a_text_in_no_file_that_was_never_read_is_not_waited_for(tiny: Run) -> None:
    tiny.data_file.unlink()
    said = refused("resume", tiny.path)
    assert "stopped before its text was read" in said
    assert "another --out" in said


def test_a_model_without_its_training_cannot_be_gone_on_with(tiny: Run, tmp_path: Path) -> None:
    LanguageModel.load(tiny.path).save(tmp_path / "model")
    said = refused("resume", tmp_path / "model")
    assert "a model without its training" in said
    assert "leporello generate" in said


def test_a_run_that_is_over_says_so_and_gets_its_report(tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_view, "_gradient_flow", lambda training: Flow("not measured here"))
    before = tiny.last_file.read_bytes()
    said = drawn("resume", tiny.path)
    assert said.startswith("the run is over: 2 epochs are done.\n")
    assert "leporello generate" in said
    assert tiny.report_file.is_file()
    assert read_checkpoint(tiny.last_file)[1] == read_checkpoint(_kept(tiny, before))[1]
    (line,) = drawn("resume", tiny.path, "--json").splitlines()
    assert json.loads(line)["why"] == "2 epochs are done"


def _kept(run: Run, contents: bytes) -> Path:
    file = run.path.parent / "before.safetensors"
    file.write_bytes(contents)
    return file


def test_a_run_goes_on_to_its_end(tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_view, "_gradient_flow", lambda training: Flow("not measured here"))
    tensors, facts = read_checkpoint(tiny.last_file)
    facts["progress"] |= {"ended": None, "update": 50, "epoch": 1, "position": 24, "evaluated": 45}
    write_checkpoint(tiny.last_file, tensors, facts)
    said = drawn("resume", tiny.path)
    assert said.startswith("text     shells.txt\n")
    assert "stopped: 2 epochs are done, 52 updates" in said
    assert [line["update"] for line in tiny.metrics() if line["kind"] == "validation"][-1] == 52
