"""`RunSummary`: what a run folder says about a run: how it was trained, how far it came, how good it became.

Of checkpoints only the headers are read, so that a run whose cell cannot be imported, or that is being trained at this
moment, can be summarised too.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leporello.errors import FileMismatch
from leporello.language.config import Config
from leporello.language.ngrams.baseline import Row, read_baseline
from leporello.language.run.checkpoint_file import read_checkpoint_header
from leporello.language.run.folder import Run

ALIVE_SECONDS = 60  # a run whose files changed since then may still be running


@dataclass(frozen=True, eq=False)
class RunSummary:
    """What a run folder says about a run.

    source       the name of the text
    corpus       its counts and its digest (`Corpus.record`); empty for a model without its text
    parameters   the number of parameters of the network; None before the first checkpoint
    progress     the counters of the last checkpoint
    metrics      all lines of metrics.jsonl
    best         the validation line with the lowest loss; None before the first validation
    models       the baseline: the uniform model and n-grams; empty if it was not measured
    changed      when the folder was last written to, in seconds since 1970
    """

    run: Run
    config: Config
    source: str
    corpus: Mapping[str, Any]
    parameters: int | None
    progress: Mapping[str, Any]
    metrics: tuple[dict[str, Any], ...]
    best: Mapping[str, Any] | None
    models: tuple[Row, ...]
    changed: float

    @property
    def network(self) -> str:
        """The cells and their size, for people: lstm 256, or 2 x lstm 256."""
        layers = f"{self.config.layers} x " if self.config.layers > 1 else ""
        return f"{layers}{self.config.cell} {self.config.hidden}"

    @property
    def ended(self) -> str | None:
        """Why the run is over; None if it is not."""
        return self.progress.get("ended")

    @property
    def state(self) -> str:
        """ended, running?, interrupted, or model for one that was saved without its training.

        running?: its files changed within the last minute, and no report was written since.
        """
        if not self.corpus:
            return "model"
        if self.ended is not None:
            return "ended"
        reported = self.run.report_file.is_file() and self.run.report_file.stat().st_mtime >= self.changed
        return "running?" if not reported and time.time() - self.changed < ALIVE_SECONDS else "interrupted"

    @property
    def last(self) -> Mapping[str, Any]:
        """The last line of training or validation; empty if there is none."""
        return next((line for line in reversed(self.metrics) if line["kind"] in ("train", "validation")), {})

    @property
    def seconds(self) -> float:
        """The time of training."""
        return max(self.progress.get("seconds", 0.0), self.last.get("seconds", 0.0))

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the lines of training; None if there is none."""
        speeds = [line["tokens_per_second"] for line in self.metrics if line["kind"] == "train"]
        return statistics.median(speeds) if speeds else None


def summary_of(run: Run) -> RunSummary:
    """The summary of a run; damaged files are refused."""
    config = run.config()
    corpus = run.data().get("corpus") or {}
    metrics = _metrics(run)
    checkpoints = [file for file in (run.last_file, run.best_file) if file.is_file()]
    parameters, facts = read_checkpoint_header(checkpoints[0]) if checkpoints else (None, {})
    validations = [line for line in metrics if line["kind"] == "validation" and math.isfinite(line["loss"])]
    files = [file for file in (run.metrics_file, run.last_file, run.config_file) if file.is_file()]
    try:
        return RunSummary(
            run,
            config,
            corpus.get("source", "-"),
            corpus,
            parameters,
            facts.get("progress", {}),
            metrics,
            min(validations, key=lambda line: line["loss"], default=None),
            tuple(read_baseline(run.ngrams_file)) if run.ngrams_file.is_file() else (),
            max(file.stat().st_mtime for file in files),
        )
    except OSError as error:
        raise FileMismatch("the run cannot be read.", folder=run.path, says=error.strerror or error) from error


def _metrics(run: Run) -> tuple[dict[str, Any], ...]:
    """All lines of metrics; damaged ones are refused."""
    try:
        return tuple(line for line in run.metrics() if line["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileMismatch("the metrics are damaged.", file=run.metrics_file, says=error) from error
