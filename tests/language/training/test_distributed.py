"""Several processes train one network: together they do what one process with all rows does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from leporello.errors import FileMismatch
from leporello.language.run.checkpoint_file import read_checkpoint
from leporello.language.run.folder import Run
from leporello.language.training.train import resume_training, start_training
from tests.language import forked
from tests.language.texts import rhyme
from tests.language.tiny import finished
from tests.language.training.test_training_loop import config

OPTIONS: dict[str, Any] = {
    "cell": "gru", "hidden": 8, "batch": 3, "window": 8, "epochs": 1, "first": 900, "ngrams": 0, "dropout": 0.0,
    "embedding": 0, "precision": "float64", "sample-every": 0, "save-every": 0, "evaluate-every": 5,
    "engine": "reference", "threads": 1, "device": "cpu",
}  # fmt: skip
UPDATES = 16  # 810 tokens to train on: 2 times 3 rows of 8 steps each


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "rhyme.txt"
    file.write_text(rhyme())
    return file


def words(text: Path, out: Path) -> list[object]:
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    return ["train", text, "--out", out, "--json", *options]


def two(begin: Callable[..., Any], given: Any, folder: Path) -> list[Any]:
    """Two processes, with the environment variables that torchrun sets."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        begin(given, folder / f"said-{rank}.txt", RANK=str(rank), LOCAL_RANK=str(rank), **ranks) for rank in range(2)
    ]


def torchrun(given: list[object], said: Path) -> subprocess.CompletedProcess[bytes]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "leporello",
    ]
    with said.open("wb") as out:
        return subprocess.run([*command, *map(str, given)], stdout=out, stderr=out, timeout=200, check=False)


def refuse_differences(run: Run, text: Path, folder: Path) -> None:
    """The weights and the losses of two processes are those of one with twice the batch."""
    options = {name.replace("-", "_"): value for name, value in OPTIONS.items()}
    alone = start_training(config(text=(str(text),), **{**options, "batch": 6}), None, folder / "alone")
    finished(alone)
    tensors, facts = read_checkpoint(run.last_file)
    expected, others = read_checkpoint(alone.run.last_file)
    assert facts["ranks"] == 2
    assert facts["progress"]["update"] == others["progress"]["update"] == UPDATES
    assert facts["progress"]["tokens"] == others["progress"]["tokens"]
    for name, value in expected.items():
        if not name.startswith("rank."):
            assert torch.allclose(tensors[name], value, rtol=0, atol=1e-10), name
    losses, plain = ([line for line in one.metrics() if line["kind"] == "validation"] for one in (run, alone.run))
    assert [line["update"] for line in losses] == [line["update"] for line in plain] == [5, 10, 15, 16]
    assert [line["loss"] for line in losses] == pytest.approx([line["loss"] for line in plain], abs=1e-10)


@pytest.mark.slow
def test_two_processes_do_what_one_does_with_twice_the_batch_and_are_resumed(text: Path, tmp_path: Path):
    run = Run(tmp_path / "two")
    both = two(forked.begun, words(text, run.path), tmp_path)
    while not run.last_file.is_file() and any(one.is_alive() for one in both):
        time.sleep(0.002)
    os.kill(both[0].pid, signal.SIGINT)  # the first process decides for both
    for one in both:
        one.join(60)
    said = (tmp_path / "said-0.txt").read_text()
    assert [one.exitcode for one in both] == [130, 130], said
    assert json.loads(said.splitlines()[-1])["why"] == "interrupted"
    assert (tmp_path / "said-1.txt").read_text() == ""  # the other writes nothing
    both = two(forked.going_on, run.path, tmp_path)
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0], (tmp_path / "said-0.txt").read_text()
    refuse_differences(run, text, tmp_path)
    with pytest.raises(
        FileMismatch, match=r"another number of processes(.|\n)*torchrun --nproc-per-node 2 -m leporello"
    ):
        resume_training(run.path)


@pytest.mark.slow
def test_torchrun_starts_and_resumes_two_processes(text: Path, tmp_path: Path):
    run, said = Run(tmp_path / "two"), tmp_path / "said.txt"
    assert torchrun(words(text, run.path), said).returncode == 0, said.read_text()
    lines = [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{")]
    assert [line["kind"] for line in lines].count("end") == 1  # one of them speaks
    refuse_differences(run, text, tmp_path)
    assert torchrun(["resume", run.path, "--json"], said).returncode == 0
    assert '"why": "1 epoch is done"' in said.read_text()
