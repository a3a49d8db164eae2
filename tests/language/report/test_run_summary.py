"""A run as it is seen from outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leporello.errors import FileMismatch
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.run_summary import ALIVE_SECONDS, summary_of
from leporello.language.run.folder import Run
from leporello.language.text.sources import Source
from leporello.language.training.train import start_training
from tests.language.tiny import CONFIG, TEXT, add_line, finished, tiny_run  # noqa: F401


def test_a_summary_tells_what_the_files_of_the_run_hold(tiny: Run) -> None:
    found = summary_of(tiny)
    net = LanguageModel.load(tiny.path).net
    assert found.parameters == sum(value.numel() for value in net.parameters())
    assert (found.source, found.network, found.state) == ("shells.txt", "gru 8", "ended")
    assert found.ended == "2 epochs are done"
    assert found.best is not None
    assert found.best["loss"] == min(line["loss"] for line in found.metrics if line["kind"] == "validation")
    assert [row.name for row in found.models] == ["uniform", "1-gram", "2-gram", "3-gram"]
    assert found.last["epoch"] == 2
    assert found.tokens_per_second is not None


def test_tied_parameters_count_once(tmp_path: Path) -> None:
    config = CONFIG.replaced({"embedding": 8, "tied": True, "epochs": 1})
    training = start_training(config, Source.of_text(TEXT), tmp_path / "tied")
    finished(training)
    assert training.run is not None
    assert summary_of(training.run).parameters == sum(value.numel() for value in training.net.parameters())


def test_a_run_that_is_not_over_is_running_if_it_was_written_to_just_now(tiny: Run) -> None:
    tiny.last_file.unlink()
    tiny.best_file.unlink()
    assert summary_of(tiny).state == "running?"
    for file in tiny.path.iterdir():
        os.utime(file, (0, file.stat().st_mtime - ALIVE_SECONDS - 1))
    found = summary_of(tiny)
    assert (found.state, found.parameters, found.ended) == ("interrupted", None, None)


def test_a_run_whose_report_is_written_is_not_running(tiny: Run) -> None:
    tiny.last_file.unlink()
    tiny.best_file.unlink()
    tiny.report_file.touch()
    assert summary_of(tiny).state == "interrupted"


def test_a_model_that_was_saved_alone_is_told_apart(tiny: Run, tmp_path: Path) -> None:
    LanguageModel.load(tiny.path).save(tmp_path / "alone")
    found = summary_of(Run.open(tmp_path / "alone"))
    assert (found.state, found.best, found.metrics, found.models) == ("model", None, (), ())
    assert found.parameters == summary_of(tiny).parameters


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: run.last_file.write_bytes(b"short"), "cut or damaged"),
        (lambda run: run.metrics_file.write_text("nonsense\n"), "metrics are damaged"),
        (lambda run: run.metrics_file.write_text("{}\n"), "metrics are damaged"),
        (lambda run: run.ngrams_file.write_text("[1]"), "n-grams are damaged"),
        (lambda run: run.data_file.unlink(), "before its text was read"),
    ],
)
def test_damaged_files_are_refused_by_name(damage: Callable[[Run], object], words: str, tiny: Run) -> None:
    damage(tiny)
    with pytest.raises(FileMismatch, match=words):
        summary_of(tiny)


def test_a_last_line_that_was_cut_is_left_out(tiny: Run) -> None:
    before = summary_of(tiny).metrics
    with tiny.metrics_file.open("a") as file:
        file.write('{"kind": "tr')
    assert summary_of(tiny).metrics == before


def test_infinite_losses_are_no_best_ones(tiny: Run) -> None:
    before = summary_of(tiny).best
    add_line(tiny, kind="validation", update=99, epoch=9, loss=float("nan"), perplexity=float("nan"))
    assert summary_of(tiny).best == before
