"""Where the gradients of a trained language model go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leporello.cli import training_view
from leporello.cli.training_view import (
    FLOW_ROWS,
    FLOW_STEPS,
    MIN_FLOW_STEPS,
    _affordable_size,
    _windows,
    flow_of,
    measure_flow,
)
from leporello.language.model.language_model import LanguageModel
from leporello.language.run.folder import Run
from leporello.language.text.sources import Source
from leporello.language.training.train import corpus_of_run, start_training
from tests.cli.invoke import drawn
from tests.language.tiny import CONFIG, TEXT, tiny_run  # noqa: F401


def test_a_flow_has_words_and_a_picture(tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_view, "FLOW_STEPS", 23)
    flow = flow_of(LanguageModel.load(tiny.path), corpus_of_run(tiny))
    assert "steps back" in flow.text
    assert flow.meaning.startswith("How much of the gradient of each token's loss")
    assert flow.svg is not None
    assert flow.svg.startswith(b"<?xml")


def test_the_gradient_is_that_of_the_cross_entropy_of_the_next_token(
    tiny: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_view, "FLOW_STEPS", 5)
    monkeypatch.setattr(training_view, "FLOW_ROWS", 1)
    model, corpus = LanguageModel.load(tiny.path), corpus_of_run(tiny)
    norms = measure_flow(model, corpus).norms
    part = corpus.validation
    assert part is not None
    tokens = part.tokens[:6].long().unsqueeze(1)
    first = model.net.initial_state(1).detach().requires_grad_()
    scores, _ = model.net(tokens[:-1], first)
    for time in range(5):
        loss = torch.nn.functional.cross_entropy(scores[time], tokens[time + 1])
        (gradient,) = torch.autograd.grad(loss, first, retain_graph=True)
        assert norms[time, 0].item() == pytest.approx(gradient.norm().item(), rel=1e-3)


def test_a_fed_network_is_measured_as_it_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_view, "FLOW_STEPS", 7)
    training = start_training(CONFIG.replaced({"cell": "elman-jordan"}), Source.of_text(TEXT), tmp_path / "run")
    assert training.model.scorer().forced
    found = measure_flow(training.model, training.corpus)
    assert found.norms.shape == (7, 7)


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    training = start_training(CONFIG.replaced({"cell": "perceptron"}), Source.of_text(TEXT), tmp_path / "run")
    flow = flow_of(training.model, training.corpus)
    assert flow.text.startswith("not measured: ")
    assert flow.svg is None


@pytest.mark.parametrize(
    ("parameters", "tokens", "expected"),
    [
        (10_000, 100_000, (FLOW_STEPS, FLOW_ROWS)),
        (300, 51, (50, 1)),
        (10**9, 100_000, (MIN_FLOW_STEPS, 1)),
        (300, 2, (1, 1)),
    ],
)
def test_a_large_network_is_looked_at_over_fewer_steps(parameters: int, tokens: int, expected: tuple[int, int]) -> None:
    assert _affordable_size(parameters, tokens) == expected


@pytest.mark.parametrize(("length", "steps", "rows"), [(2, 1, 1), (51, 50, 1), (100, 7, 8), (23, 11, 2)])
def test_windows_lie_within_the_text_and_targets_follow_inputs(length: int, steps: int, rows: int) -> None:
    inputs, targets = _windows(torch.arange(length), steps, rows)
    assert inputs.shape == targets.shape == (steps, rows)
    assert (targets == inputs + 1).all()
    assert targets.max() < length
    assert len(set(inputs[0].tolist())) == rows


def test_a_training_ends_with_a_report_of_it(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    options = "--hidden 3 --batch 3 --window 11 --epochs 1 --sample-every 0 --ngrams 2 --engine stepwise --threads 1"
    threads = torch.get_num_threads()
    drawn("train", tmp_path / "text.txt", *options.split(), "--out", tmp_path / "run", "--quiet")
    torch.set_num_threads(threads)
    page = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "## Where gradients go" in page
    assert "![perplexity over the training](curve.svg)" in page
    assert {"curve.svg", "flow.svg"} <= {file.name for file in (tmp_path / "run").iterdir()}
