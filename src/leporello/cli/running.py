"""A training shown to its end: Ctrl-C stops it after the present update, with a checkpoint.

Knows views, signals and what is said before and after; knows nothing of options. A run that was stopped so has the exit
code that shells give to a signal: 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer

from leporello.cli.columns import duration
from leporello.cli.counting import counting
from leporello.cli.instruments import flow_of
from leporello.cli.saying import say, warn
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.perplexity import perplexity_of_loss
from leporello.language.ngrams.baseline import Row, as_text, corpus_baseline
from leporello.language.report.markdown_report import Flow, write_report
from leporello.language.training.display import Display, JsonLines, NoDisplay, ProgressBar
from leporello.language.training.training_loop import Training
from leporello.plotting import INSTALL_HINT, matplotlib_missing


def run_to_the_end(training: Training, *, as_json: bool = False, quiet: bool = False) -> None:
    """Train, show, and write the report."""
    leads, over = training.ranks.is_main, training.progress.ended is not None
    talks = leads and not quiet and not as_json
    try:
        if talks:
            say(f"the run is over: {training.progress.ended}." if over else introduction(training))
        rows = _models(training, talks and not over) if leads else []
        with stopping(training) as stopped, _view(training, rows, as_json=as_json, quiet=quiet) as view:
            for event in training.events():
                view.show(event)
        if leads and training.run is not None:
            write_report(training.run, None if training.interrupted else _flow(training))
    except KeyboardInterrupt:
        if leads and training.run is not None:
            warn(f"broken off: leporello resume {training.run.path} goes on from the last checkpoint")
        raise typer.Exit(128 + signal.SIGINT) from None
    if talks:
        say(conclusion(training, rows))
        if training.run is not None and matplotlib_missing():
            warn(f"curve.svg needs matplotlib: {INSTALL_HINT}")
    training.leave()
    if training.interrupted and training.progress.ended is None:
        raise typer.Exit(128 + (stopped.by or signal.SIGINT))


def introduction(training: Training) -> str:
    """What will be trained, on what, and where it goes."""
    corpus, config = training.corpus, training.config
    count = sum(value.numel() for value in training.net.parameters())
    validation = 0 if corpus.validation is None else len(corpus.validation.tokens)
    layers = f"{config.layers} layers of " if config.layers > 1 else ""
    parts = f"{len(corpus.train.tokens):,} to train on, {validation:,} to validate with"
    lines = [
        f"text     {corpus.source}",
        f"tokens   {parts}, {corpus.tokenizer.size:,} different",
        f"network  {layers}{config.cell}, {config.hidden} units, {count:,} parameters",
    ]
    if corpus.validation is not None and corpus.validation.unknown:
        share = corpus.validation.unknown / len(corpus.validation.tokens)
        lines.append(f"unknown  {share:.3%} of the validation part is outside the vocabulary")
    if training.run is not None:
        lines.append(f"run      {training.run.path}")
    return "\n".join(lines)


def conclusion(training: Training, rows: list[Row]) -> str:
    """How it ended, beside other models, and how to go on."""
    progress, run = training.progress, training.run
    why = progress.ended or "interrupted, and saved"
    lines = [f"stopped: {why}, {progress.update:,} updates, {duration(progress.seconds)}"]
    if progress.best is not None:
        lines += ["", as_text([*rows, _own(training, progress.best)]), ""]
    if run is not None and progress.ended is None:
        lines.append(f"go on with     leporello resume {run.path}")
    if run is not None:
        lines.append(f"write text     leporello generate {run.path}")
        lines.append(f"read about it  {run.report_file}")
    return "\n".join(lines)


def _own(training: Training, loss: float) -> Row:
    """The network as a row beside others."""
    config, part = training.config, training.corpus.validation
    assert part is not None
    return Row(
        f"{config.cell} {config.hidden}",
        perplexity_of_loss(loss),
        loss / math.log(2) * (len(part.tokens) - 1) / (part.characters - part.first_characters),
        parameters=sum(value.numel() for value in training.net.parameters()),
        seconds=training.progress.seconds,
    )


def _models(training: Training, talks: bool) -> list[Row]:
    """The models to compare with, and their table."""
    file = None if training.run is None else training.run.ngrams_file
    with counting("n-grams", talks) as progress:
        rows = corpus_baseline(training.corpus, training.config.ngrams, file, progress)
    if talks and rows:
        say(f"\n{as_text(rows)}\n")
    return rows


def _view(training: Training, rows: list[Row], *, as_json: bool, quiet: bool) -> Display:
    if quiet or not training.ranks.is_main:
        return NoDisplay()
    if as_json:
        return JsonLines()
    share = training.progress.share(training.config, training.batches.updates)
    return ProgressBar(training.config, [(row.name, row.perplexity) for row in rows], share)


@dataclass
class Stopped:
    """by   the number of the first signal that came"""

    by: int | None = None


@contextmanager
def stopping(training: Training) -> Iterator[Stopped]:
    """Ctrl-C asks the training to stop; a second one breaks it off."""
    stopped = Stopped()

    def asked(number: int, frame: Any) -> None:
        if stopped.by is not None:
            raise KeyboardInterrupt
        stopped.by = number
        training.stop()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flow(training: Training) -> Flow:
    """Where the gradients of the best network go."""
    assert training.run is not None
    return flow_of(LanguageModel.load(training.run.path), training.corpus)
