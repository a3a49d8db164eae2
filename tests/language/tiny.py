"""A run folder for tests: a net of eight units, trained for some updates once a session, and copied for each test."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from leporello.language.config import Config
from leporello.language.ngrams.baseline import corpus_baseline
from leporello.language.run.folder import Run
from leporello.language.text.sources import Source
from leporello.language.training.train import start_training
from leporello.language.training.training_loop import Training

TEXT = "She sells sea shells by the sea shore; the shells she sells are surely seashells.\n" * 12
CONFIG = Config(
    text=("-",), hidden=8, batch=3, window=11, epochs=2, evaluate_every=9, sample_every=0, ngrams=3,
    cell="gru", embedding=0, dropout=0.0, rate=0.004, engine="stepwise", device="cpu",
)  # fmt: skip


@functools.cache
def _made(base: Path) -> Path:
    folder = base / "tiny-run"
    training = start_training(CONFIG, Source.of_text(TEXT, "shells.txt"), folder)
    corpus_baseline(training.corpus, CONFIG.ngrams, training.run.ngrams_file)
    finished(training)
    return folder


def finished(training: Training) -> list[dict[str, Any]]:
    """What happens until a training is over."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(training.events())
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(name="tiny")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Run:
    """A run of one's own."""
    shutil.copytree(_made(tmp_path_factory.getbasetemp()), tmp_path / "tiny")
    return Run.open(tmp_path / "tiny")


def add_line(run: Run, **line: object) -> None:
    """One more line of metrics."""
    with run.metrics_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def configured(run: Run, key: str, value: str) -> None:
    """Another value in its configuration."""
    lines = run.config_file.read_text(encoding="utf-8").splitlines()
    changed = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
    run.config_file.write_text("\n".join(changed) + "\n", encoding="utf-8")
