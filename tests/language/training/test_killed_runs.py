"""A training that is killed at any moment goes on as if nothing had happened."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from leporello.atomic_write import remove_temporary_files
from leporello.errors import FileMismatch
from leporello.language.config import Config, config_of
from leporello.language.run.checkpoint_file import read_checkpoint, read_checkpoint_header
from leporello.language.run.folder import Run
from leporello.language.training.train import corpus_of_run, resume_training, start_training
from tests.language import forked
from tests.language.texts import rhyme
from tests.language.tiny import finished

OPTIONS = {
    "cell": "gru", "hidden": 8, "embedding": 5, "batch": 4, "window": 8, "epochs": 2, "evaluate-every": 13, "ngrams": 2,
    "dropout": 0.2, "gradient": "random:0.9", "save-every": 0, "sample-every": 0, "engine": "reference", "threads": 1,
    "device": "cpu", "first": 900,
}  # fmt: skip
UPDATES = 50


class Process(Protocol):
    """A command that runs by itself."""

    def kill(self) -> None: ...
    def is_alive(self) -> bool: ...
    def join(self) -> None: ...


Begin = Callable[[list[object], Path], Process]


class Here:
    """The same in this process, without a report: nobody kills it."""

    def __init__(self, words: list[object], said: Path) -> None:
        name, folder = words[:2]
        if name == "resume":
            finished(resume_training(Path(str(folder))))
        else:
            options = {name.replace("-", "_"): value for name, value in OPTIONS.items()}
            finished(start_training(config_of({"text": str(words[1]), **options}), None, Path(str(words[3]))))

    def join(self) -> None: ...
    def kill(self) -> None: ...
    def is_alive(self) -> bool:
        return False


class Started:
    """The command as anyone starts it."""

    def __init__(self, words: list[object], said: Path) -> None:
        with said.open("w") as out:
            command = [sys.executable, "-m", "leporello", *map(str, words)]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self.kill = self.process.kill

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def join(self) -> None:
        self.process.wait(120)


def words(run: Run) -> list[object]:
    """How the run is begun, or gone on with."""
    if run.config_file.is_file():
        return ["resume", run.path, "--json"]
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    return ["train", run.path.parent / "rhyme.txt", "--out", run.path, "--json", *options]


def whole_run(run: Run, begin: Begin) -> tuple[dict[str, Tensor], dict[str, Any], float]:
    """The last checkpoint of a run that nobody kills, and how long it took in seconds."""
    (run.path.parent / "rhyme.txt").write_text(rhyme())
    before = time.monotonic()
    process = begin(words(run), run.path.parent / "said.txt")
    process.join()
    tensors, facts = read_checkpoint(run.last_file)
    assert facts["progress"]["ended"] == "2 epochs are done"
    assert facts["progress"]["update"] == UPDATES
    return tensors, facts, time.monotonic() - before


def updates_of(run: Run) -> int:
    """How far the last checkpoint is, -1 before the first."""
    try:
        return read_checkpoint_header(run.last_file)[1]["progress"]["update"]
    except FileMismatch:
        return -1


def killed_at(run: Run, begin: Begin, moment: Callable[[Process], bool]) -> bool:
    """Run until a moment, then kill; whether it was still alive. What is left is whole."""
    process = begin(words(run), run.path.parent / "said.txt")
    while process.is_alive() and not moment(process):
        time.sleep(0.001)
    alive = process.is_alive()
    process.kill()
    process.join()
    _refuse_halves(run)
    return alive


def after(seconds: float) -> Callable[[Process], bool]:
    end = time.monotonic() + seconds
    return lambda process: time.monotonic() >= end


def at_update(run: Run, update: int, seconds: float) -> Callable[[Process], bool]:
    """Some moment after an update: while the next is computed, or while its checkpoint is written."""
    reached: list[float] = []

    def moment(process: Process) -> bool:
        if not reached and updates_of(run) >= update:
            reached.append(time.monotonic())
        return bool(reached) and time.monotonic() - reached[0] >= seconds

    return moment


def _refuse_halves(run: Run) -> None:
    """Whatever has its name is whole."""
    if run.config_file.exists():
        run.config()
    if run.data_file.exists():
        assert len(corpus_of_run(run).train.tokens) == 810
    for file in (run.last_file, run.best_file):
        if file.exists():
            read_checkpoint(file)
    if run.last_file.exists():  # the metrics that it counts on are there
        size = read_checkpoint_header(run.last_file)[1]["metrics"]
        lines = run.metrics_file.read_bytes()[:size] if size else b""
        assert len(lines) == size
        assert all(json.loads(line) for line in lines.splitlines())


def refuse_differences(run: Run, begin: Begin, tensors: dict[str, Tensor], facts: dict[str, Any], hint: str) -> None:
    """Let a run come to its end: all is as if it had never been killed."""
    said = run.path.parent / "said.txt"
    begin(words(run), said).join()
    found, others = read_checkpoint(run.last_file)
    assert found.keys() == tensors.keys(), said.read_text()
    assert [name for name in found if not torch.equal(found[name], tensors[name])] == [], hint
    for name in ("update", "epoch", "position", "tokens", "best", "evaluated", "ended"):
        assert others["progress"][name] == facts["progress"][name], (name, hint)
    lines = list(run.metrics())
    for kind in ("train", "validation"):
        updates = [line["update"] for line in lines if line["kind"] == kind]
        assert updates == sorted(set(updates)), hint
    assert [line["update"] for line in lines if line["kind"] == "validation"] == [13, 26, 39, 50]
    assert not list(run.path.glob(".*"))  # what was half written is gone


def test_a_run_killed_at_three_moments_gives_the_same_weights(tmp_path: Path):
    tensors, facts, _ = whole_run(Run(tmp_path / "whole"), Here)
    run, chance = Run(tmp_path / "killed"), random.Random(3)
    moments = [
        after(chance.uniform(0.3, 1.5)),  # about the first checkpoint
        at_update(run, chance.randrange(2, 20), chance.uniform(0, 0.03)),
        at_update(run, chance.randrange(21, 40), chance.uniform(0, 0.03)),
    ]
    assert sum(killed_at(run, forked.begun, moment) for moment in moments) >= 2
    refuse_differences(run, Here, tensors, facts, "seed 3")


@pytest.mark.slow
def test_a_run_killed_at_thirty_moments_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPTIONS, "engine", "cpu")
    begin: Begin = Started
    tensors, facts, seconds = whole_run(Run(tmp_path / "whole"), begin)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    alive = 0
    for round, moments in enumerate(_thirty(chance, seconds)):
        run = Run(tmp_path / f"killed-{round}")
        alive += sum(killed_at(run, begin, made(run)) for made in moments)
        refuse_differences(run, begin, tensors, facts, f"seed {seed}, round {round}")
        assert run.report_file.is_file()
    assert alive >= 20, f"seed {seed}"


def _thirty(chance: random.Random, seconds: float) -> Iterator[list[Callable[[Run], Callable[[Process], bool]]]]:
    """Six runs with five moments each: two by the clock, from the first import on, and three while it trains."""
    for _ in range(6):
        times = [chance.uniform(0, 0.8 * seconds) for _ in range(2)]
        updates = [(n, chance.uniform(0, 0.03)) for n in sorted(chance.randrange(UPDATES - 4) for _ in range(3))]
        clocks = [lambda run, wait=wait: after(wait) for wait in times]
        yield [*clocks, *(lambda run, n=n, wait=wait: at_update(run, n, wait) for n, wait in updates)]


def test_what_a_killed_process_left_half_written_is_swept_away(tmp_path: Path):
    run = Run.create(tmp_path / "run", Config())
    run.config_file.unlink()
    half, mine = run.path / ".0123456789ab.tmp", run.path / ".mine.tmp"
    half.write_bytes(b"half a check")
    Run.create(run.path, Config())  # a folder with nothing else in it counts as empty
    assert not half.exists()
    mine.write_bytes(b"")
    remove_temporary_files(run.path)
    assert mine.exists()
