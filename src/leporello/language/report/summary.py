"""`Summary`: a run as one sees it from outside: what was trained, how far it came, how good it became.

Knows the files of a run folder and reads no numbers of networks: of checkpoints, the headers alone. So a run whose cell
is not at hand, or that is being trained at this moment, can be looked at too.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leporello.errors import FileMismatch
from leporello.language.config import Config
from leporello.language.ngrams.baseline import Row
from leporello.language.run.checkpoint import KEY
from leporello.language.run.folder import Run

ALIVE_SECONDS = 60  # a run whose files changed since then may still be running


@dataclass(frozen=True, eq=False)
class Summary:
    """What a run folder tells.

    source       the name of the text
    corpus       what was counted of it, its digest; empty for a model without its text
    parameters   of the network; None before the first checkpoint
    progress     the counters of the last checkpoint
    metrics      all lines
    best         the validation line with the lowest loss, if there is any
    models       the uniform one and n-grams, as they were measured when the run began
    changed      when it was written to, in seconds since 1970
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
        """lstm 256, or 2 x lstm 256."""
        layers = f"{self.config.layers} x " if self.config.layers > 1 else ""
        return f"{layers}{self.config.cell} {self.config.hidden}"

    @property
    def ended(self) -> str | None:
        """Why the run is over, if it is."""
        return self.progress.get("ended")

    @property
    def state(self) -> str:
        """ended, running?, interrupted, or model: one that was saved without its training."""
        if not self.corpus:
            return "model"
        if self.ended is not None:
            return "ended"
        over = self.run.report_file.is_file() and self.run.report_file.stat().st_mtime >= self.changed
        return "running?" if not over and time.time() - self.changed < ALIVE_SECONDS else "interrupted"

    @property
    def last(self) -> Mapping[str, Any]:
        """The last line that tells how far the run came."""
        return next((line for line in reversed(self.metrics) if line["kind"] in ("train", "validation")), {})

    @property
    def seconds(self) -> float:
        return max(self.progress.get("seconds", 0.0), self.last.get("seconds", 0.0))

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the lines of training."""
        found = [line["tokens_per_second"] for line in self.metrics if line["kind"] == "train"]
        return statistics.median(found) if found else None


def summary_of(run: Run) -> Summary:
    """Look at a run; what is damaged is refused."""
    config = run.config()
    corpus = run.data().get("corpus") or {}
    metrics = _lines(run)
    there = [file for file in (run.last_file, run.best_file) if file.is_file()]
    parameters, facts = header_of(there[0]) if there else (None, {})
    validations = [line for line in metrics if line["kind"] == "validation" and math.isfinite(line["loss"])]
    files = [file for file in (run.metrics_file, run.last_file, run.config_file) if file.is_file()]
    try:
        return Summary(
            run,
            config,
            corpus.get("source", "-"),
            corpus,
            parameters,
            facts.get("progress", {}),
            metrics,
            min(validations, key=lambda line: line["loss"], default=None),
            _models(run),
            max(file.stat().st_mtime for file in files),
        )
    except OSError as error:
        raise FileMismatch("the run cannot be read.", folder=run.path, says=error.strerror or error) from error


def header_of(file: Path) -> tuple[int, dict[str, Any]]:
    """Of a checkpoint: the number of parameters, and its facts."""
    try:
        import safetensors  # here, because `import leporello` needs torch alone
    except ImportError as error:
        raise ImportError("checkpoints need the package safetensors: pip install 'leporello[language]'") from error
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {}).get(KEY, "null"))
            sizes = {name: math.prod(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FileMismatch("the checkpoint is cut or damaged.", file=file, says=error) from error
    if not isinstance(facts, dict):
        raise FileMismatch("the file is no checkpoint of a training run.", file=file)
    return _parameters(sizes), facts


def _parameters(sizes: Mapping[str, int]) -> int:
    """Numbers that are learnt: those that the optimiser follows; all of the network where it follows none yet."""
    followed: dict[str, int] = {}
    for name, size in sizes.items():
        if name.startswith("optimiser."):
            index = name.split(".")[1]
            followed[index] = max(size, followed.get(index, 0))
    own = [size for name, size in sizes.items() if name.startswith("net.")]
    return sum(followed.values()) or sum(own)


def _lines(run: Run) -> tuple[dict[str, Any], ...]:
    try:
        return tuple(line for line in run.metrics() if line["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileMismatch("the metrics are damaged.", file=run.metrics_file, says=error) from error


def _models(run: Run) -> tuple[Row, ...]:
    if not run.ngrams_file.is_file():
        return ()
    try:
        told = json.loads(run.ngrams_file.read_text(encoding="utf-8"))
        rows = [Row(**{name: value for name, value in one.items() if name != "best_order"}) for one in told]
    except (ValueError, TypeError, AttributeError) as error:
        raise FileMismatch("the n-grams are damaged.", file=run.ngrams_file, says=error) from error
    return tuple(row for row in rows if row.perplexity is not None)
