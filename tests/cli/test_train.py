"""`leporello train`: what it reads and writes, what it refuses in words, and how it stops."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from leporello.cli import train as command
from leporello.cli import training_view
from leporello.language.report.markdown_report import Flow
from leporello.language.run.checkpoint_file import read_checkpoint
from leporello.language.run.folder import Run
from leporello.language.training.train import resume_training
from leporello.language.training.training_loop import Training
from tests.cli.invoke import drawn, leporello, refused
from tests.language import forked
from tests.language.texts import rhyme
from tests.language.tiny import finished

SMALL: tuple[object, ...] = (
    "--cell", "gru", "--hidden", 8, "--embedding", 0, "--batch", 4, "--window", 8, "--epochs", 1, "--first", 900,
    "--ngrams", 0, "--sample-every", 0, "--engine", "reference", "--device", "cpu",
)  # fmt: skip
UPDATES = 25
KEYS = {
    "train": ["kind", "update", "epoch", "tokens", "seconds", "loss", "perplexity", "bits_per_character",
              "gradient_norm", "clipped", "rate", "tokens_per_second"],
    "validation": ["kind", "update", "epoch", "tokens", "seconds", "loss", "perplexity", "bits_per_character",
                   "unknown", "best"],
    "end": ["kind", "update", "epoch", "tokens", "seconds", "why", "best"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """In a folder with a text; one thread, and a report without the flow of gradients, which takes a second."""
    (tmp_path / "rhyme.txt").write_text(rhyme())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_view, "_gradient_flow", lambda training: Flow("not measured here"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    """Trainings that the command makes ready, which are not run."""
    found: list[Training] = []
    monkeypatch.setattr(command, "run_training", lambda training, **options: found.append(training))
    return found


# ---- what it needs


@pytest.mark.parametrize(
    ("packages", "options", "needed"),
    [
        (["safetensors"], [], "the package safetensors"),
        (["numpy"], [], "the package numpy"),
        (["safetensors", "tomli_w"], [], "the packages tomli-w and safetensors"),
        (["tokenizers"], ["--tokens", "bpe:300"], "the package tokenizers"),
    ],
)
def test_a_missing_package_is_named_before_anything_is_read_or_written(
    packages: list[str], options: list[str], needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    said = refused("train", "no_such_text.txt", *SMALL, *options, "--out", "run")
    assert said.startswith(f"error: this training needs {needed}.")
    assert "try" in said
    assert "pip install 'leporello[language]'" in said
    assert not Path("run").exists()


def test_without_the_packages_that_only_some_options_need_it_trains_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `leporello[cli]` does not install: curves, pieces of words, events for TensorBoard."""
    for package in ("matplotlib", "tokenizers", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    result = leporello("train", "rhyme.txt", *SMALL, "--out", "run")
    assert result.exit_code == 0, result.output
    assert Path("run/report.md").is_file()


# ---- what it does


def test_lines_of_json_have_the_promised_keys_and_events_are_written_beside() -> None:
    lines = [json.loads(line) for line in drawn("train", "rhyme.txt", *SMALL, "--json", "--tensorboard").splitlines()]
    assert [line["kind"] for line in lines[-3:]] == ["train", "validation", "end"]
    for line in lines:
        assert sorted(line) == sorted(KEYS[line["kind"]])
    assert lines[-1]["why"] == "1 epoch is done"
    assert lines[-1]["update"] == UPDATES
    run = Run.open("runs/rhyme-gru")
    assert list(run.metrics()) == [line for line in lines if line["kind"] != "end"]
    assert list((run.path / "tensorboard").iterdir())
    assert {file.name for file in run.path.iterdir()} == {
        "config.toml", "metrics.jsonl", "vocabulary.json", "tokens.bin", "data.json", "last.safetensors",
        "best.safetensors", "curve.svg", "report.md", "tensorboard",
    }  # fmt: skip


def test_people_are_told_what_is_trained_beside_what_and_how_to_go_on() -> None:
    said = drawn("train", "rhyme.txt", *SMALL, "--ngrams", 2, "--out", "mine")
    assert "tokens   810 to train on, 90 to validate with" in said
    assert "stopped: 1 epoch is done, 25 updates" in said
    assert "leporello generate mine" in said
    heads, *rows = (line for line in said.split("stopped")[1].splitlines()[2:7])
    assert heads.split("  ")[0] == "model"
    assert [row.split()[0] for row in rows] == ["uniform", "1-gram", "2-gram", "gru"]
    assert max(map(len, said.splitlines())) <= 80


def test_texts_come_packed_in_folders_and_through_standard_input(begun: list[Training]) -> None:
    Path("rhyme.gz").write_bytes(gzip.compress(rhyme().encode()))
    Path("shelf").mkdir()
    Path("shelf/rhyme.txt").write_text(rhyme())
    Path("shelf/picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for number, text in enumerate(("rhyme.txt", "rhyme.gz", "shelf", "-")):
        result = leporello("train", text, *SMALL, "--out", f"run-{number}", read=rhyme())
        assert result.exit_code == 0, result.output
    assert len({training.corpus.digest for training in begun}) == 1
    assert begun[0].config.text == (str(Path("rhyme.txt").absolute()),)
    assert begun[3].config.text == ("-",)


def test_a_configuration_is_read_and_options_come_first(begun: list[Training]) -> None:
    Path("mine.toml").write_text('text = "rhyme.txt"\n[network]\nhidden = 5\ncell = "gru"\n[training]\nwindow = 9\n')
    assert leporello("train", "--config", "mine.toml", "--hidden", 6, "--batch", 3, "--out", "a").exit_code == 0
    (training,) = begun
    assert (training.config.hidden, training.config.cell, training.config.window) == (6, "gru", 9)
    assert training.config.text == (str(Path("rhyme.txt").absolute()),)
    assert Run.open("a").config() == training.config


def test_each_run_without_a_name_has_a_folder_of_its_own(begun: list[Training]) -> None:
    for _ in range(2):
        assert leporello("train", "rhyme.txt", *SMALL).exit_code == 0
    assert [str(training.run.path) for training in begun if training.run] == ["runs/rhyme-gru", "runs/rhyme-gru-2"]


# ---- what it refuses


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["the text is empty", "text.txt"]),
        (b"a", ["the text is too short", "1 tokens", "a longer text"]),
        (rhyme(5).encode(), ["too short for one window", "99 tokens", "129 or more", "window=", "batch="]),
        (bytes(range(256)) * 9, ["binary, not a text", "text.txt", "--encoding NAME"]),
        (b"PK\x03\x04" + b"a" * 99, ["binary, not a text", "zip archive"]),
        (None, ["there is no such file", "text.txt"]),
    ],
)
def test_a_text_that_is_none_is_refused_and_no_folder_is_left(text: bytes | None, words: list[str]) -> None:
    if text is not None:
        Path("text.txt").write_bytes(text)
    said = refused("train", "text.txt", *SMALL, "--batch", 16, "--out", "run")
    assert [word for word in words if word not in said] == []
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--cell", "lsmt", ["'lsmt'", "nearest   LSTM"]),
        ("--gradient", "truncate:3", ["'truncate'", "truncated"]),
        ("--forcing", "lots", ["'lots'", "linear:1:0"]),
        ("--tokens", "chars", ["'chars'", "char, byte, word, bpe:N"]),
        ("--engine", "fast", ["'fast'", "auto, cpu, gpu, stepwise"]),
        ("--device", "gpu", ["'gpu'", "auto, cpu, cuda"]),
        ("--batch", 0, ["'batch' is out of bounds", "1 or more"]),
        ("--optimiser", "adan", ["'adan'", "adam"]),
        ("--encoding", "utf-99", ["utf-99"]),
        ("--config", "none.toml", ["no such configuration", "none.toml"]),
    ],
)
def test_an_option_that_cannot_be_is_refused_and_no_folder_is_left(
    option: str, value: object, words: list[str]
) -> None:
    said = refused("train", "rhyme.txt", *SMALL, option, value, "--out", "run")
    assert [word for word in words if word not in said] == []
    assert not Path("run").exists()


def test_a_misspelt_key_of_a_configuration_is_refused_by_name() -> None:
    Path("mine.toml").write_text("hiden = 5\n")
    said = refused("train", "--config", "mine.toml")
    assert "no key 'hiden'" in said
    assert "nearest  hidden" in said
    assert "mine.toml" in said


def test_a_folder_that_holds_something_is_left_alone() -> None:
    Path("full").mkdir()
    Path("full/letter.txt").write_text("dear")
    assert "the folder is not empty" in refused("train", "rhyme.txt", *SMALL, "--out", "full")
    assert os.listdir("full") == ["letter.txt"]
    assert "--out is a file" in refused("train", "rhyme.txt", *SMALL, "--out", "rhyme.txt")
    assert "Not a directory" in refused("train", "rhyme.txt", *SMALL, "--out", "rhyme.txt/run")


def test_an_empty_folder_is_kept_where_a_training_is_refused() -> None:
    Path("mine").mkdir()
    assert "'chars'" in refused("train", "rhyme.txt", *SMALL, "--tokens", "chars", "--out", "mine")
    assert os.listdir("mine") == []


def test_an_error_of_the_machine_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "tokens.bin")

    monkeypatch.setattr(command, "start_training", broken)
    said = refused("train", "rhyme.txt", *SMALL)
    assert said == "error: the machine refused.\n  file  tokens.bin\n  says  Input/output error\n"


# ---- how it stops


def test_on_a_full_disk_the_last_checkpoint_stays_and_the_run_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, left = os.fsync, [40]

    def filling(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling)
        said = leporello("train", "rhyme.txt", *SMALL, "--save-every", 0, "--out", "run", "--json")
    assert said.exit_code == 2
    assert "error: the file could not be written." in said.stderr
    assert "No space left on device" in said.stderr
    assert "leporello resume run" in said.stderr
    _, facts = read_checkpoint(Path("run/last.safetensors"))
    assert f"the last checkpoint, after {facts['progress']['update']} updates" in said.stderr
    assert 0 < facts["progress"]["update"] < UPDATES
    assert finished(resume_training(Path("run")))[-1]["why"] == "1 epoch is done"


@pytest.mark.slow
def test_a_file_that_may_not_grow_leaves_the_last_checkpoint() -> None:
    """A real limit instead of a feigned one: files of at most 60 kB, where metrics grow until they meet it."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
    start = f"{limited} from leporello_command import main; main()"
    options = [*SMALL, "--save-every", 0, "--evaluate-every", 1, "--epochs", 40, "--json", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-c", start, "train", "rhyme.txt", *map(str, options)], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"File too large" in done.stderr
    assert b"kept" in done.stderr
    assert b"Traceback" not in done.stderr
    assert read_checkpoint(Path("run/last.safetensors"))[1]["progress"]["update"] > 100


def interrupting(monkeypatch: pytest.MonkeyPatch, *updates: int, number: int = signal.SIGINT) -> None:
    """A signal comes in the middle of updates."""
    plain = Training._update

    def interrupted(self: Training, window: torch.Tensor) -> None:
        plain(self, window)
        for _ in range(updates.count(self.progress.update)):
            signal.raise_signal(number)

    monkeypatch.setattr(Training, "_update", interrupted)


def test_ctrl_c_saves_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, 7)
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background of a shell
    result = leporello("train", "rhyme.txt", *SMALL, "--out", "run")
    assert result.exit_code == 130
    assert "stopped: interrupted, and saved, 7 updates" in result.stdout
    assert "leporello resume run" in result.stdout
    assert read_checkpoint(Path("run/last.safetensors"))[1]["progress"]["update"] == 7
    assert "Stopped before its end" in Path("run/report.md").read_text()
    assert signal.getsignal(signal.SIGINT) is before


def test_what_ends_a_job_saves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, 3, number=signal.SIGTERM)
    result = leporello("train", "rhyme.txt", *SMALL, "--out", "run", "--quiet")
    assert (result.exit_code, result.output) == (143, "")
    assert read_checkpoint(Path("run/last.safetensors"))[1]["progress"]["update"] == 3


def test_a_second_ctrl_c_breaks_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, 7, 7)
    result = leporello("train", "rhyme.txt", *SMALL, "--out", "run", "--json")
    assert result.exit_code == 130
    assert "broken off: leporello resume run goes on from the last checkpoint" in result.stderr
    assert read_checkpoint(Path("run/last.safetensors"))[1]["progress"]["update"] == 0


def test_the_help_tells_what_ctrl_c_does_and_keeps_words_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    said = " ".join(drawn("train", "--help").replace("│", " ").split())
    assert "exit code 130" in said
    assert "(adam, adamw, sgd, rmsprop). [adam]" in said
    assert "elman, jordan, elman-jordan, rnn, gru, lstm, any built-in, or my_model:Class. [lstm]" in said
    assert "Units of each layer. [256]" in said


@pytest.mark.slow
def test_ctrl_c_stops_a_process_of_its_own() -> None:
    process = forked.begun(["train", "rhyme.txt", *SMALL, "--epochs", 500, "--out", "run"], Path("said.txt"))
    while not Path("run/last.safetensors").is_file():
        time.sleep(0.01)
    time.sleep(1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert "leporello resume run" in Path("said.txt").read_text()
