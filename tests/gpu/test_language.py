"""Language models on a CUDA device: they learn, go on, score and write."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from leporello.language.config import Config
from leporello.language.model.language_model import LanguageModel
from leporello.language.run.checkpoint_file import read_checkpoint
from leporello.language.text.sources import Source
from leporello.language.training.train import resume_training, start_training
from tests.language.texts import rhyme

pytest.importorskip("tomli_w", reason="a run folder is written with it")
pytestmark = pytest.mark.gpu


def config(**options: object) -> Config:
    given = {"hidden": 16, "batch": 4, "window": 16, "epochs": 3, "sample_every": 0.0, "dropout": 0.1, **options}
    return Config(text=("-",), device="cuda", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"precision": "bfloat16"}, {"cell": "jordan", "forcing": "0.5"}])
def test_a_model_learns_and_writes(tmp_path: Path, options: dict[str, object]) -> None:
    training = start_training(config(**options), Source.of_text(rhyme()), tmp_path / "a")
    losses = [event["loss"] for event in training.events() if event["kind"] == "validation"]
    assert losses[-1] < 2.5
    assert len(training.model.generate("the ", length=20, seed=1)) >= 20
    there = LanguageModel.load(tmp_path / "a", "last")
    assert math.log(there.perplexity(rhyme()[:500])) < math.log(40)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    whole = start_training(config(), Source.of_text(rhyme()), tmp_path / "whole")
    list(whole.events())
    parts = start_training(config(), Source.of_text(rhyme()), tmp_path / "parts")
    for event in parts.events():
        if event["kind"] == "validation":
            parts.stop()
    again = resume_training(tmp_path / "parts")
    list(again.events())
    first, _ = read_checkpoint(whole.run.last_file)
    second, _ = read_checkpoint(again.run.last_file)
    for name, value in first.items():
        if name.startswith("net."):
            assert torch.allclose(value, second[name], atol=1e-5)
