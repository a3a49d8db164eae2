"""`leporello runs`: the runs below a folder, as a table; a damaged run is listed with its error."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.cli.console import say, show
from leporello.errors import ArgumentError, LeporelloError
from leporello.language.report.run_summary import RunSummary, summary_of
from leporello.language.run.folder import Run
from leporello.language.run.metrics import without_infinities
from leporello.text_table import format_long_time, format_optional, plain_table

MAX_DEPTH = 4  # levels of folders that are searched
RUN_FILES = ("config.toml", "metrics.jsonl", "last.safetensors")  # a folder with any of them is a run
HEADINGS = ["run", "text", "cell", "hidden", "epochs", "updates", "time", "perplexity", "bits/char", "state", "changed"]
SORT_KEYS = ("perplexity", "date")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to look through.")] = Path("runs"),
    by: Annotated[str, typer.Option(metavar="WORD", help="What to sort by: perplexity or date.")] = "perplexity",
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as one JSON array.")] = False,
) -> None:
    """List the runs below a folder, the best first."""
    if by not in SORT_KEYS:
        raise ArgumentError("--by has no such order.", came=by, expected=", ".join(SORT_KEYS))
    if not folder.is_dir():
        raise ArgumentError("there is no such folder.", came=folder, tries="leporello train, or the name of a folder")
    summaries, damaged = find_runs(folder)
    summaries.sort(key=_perplexity if by == "perplexity" else lambda one: -one.changed)
    if as_json:
        broken = [{"run": str(run.path), "wrong": error.what, **error.details} for run, error in damaged]
        print(json.dumps([*map(record, summaries), *broken], ensure_ascii=True))
        return
    if summaries:
        show(plain_table([HEADINGS, *(_row(one, folder) for one in summaries)], left=(0, 1, 2, 9, 10)))
    for run, error in damaged:
        problem = "; ".join([error.what.rstrip("."), *(f"{name} {value}" for name, value in error.details.items())])
        say(f"{_name(run, folder)}  damaged: {problem}")
    if not summaries and not damaged:
        say(f"there are no runs below {folder}")


def find_runs(folder: Path) -> tuple[list[RunSummary], list[tuple[Run, LeporelloError]]]:
    """Summaries of the runs below a folder, and the runs that cannot be read, each with its error."""
    summaries, damaged = [], []
    for path in _folders(folder, MAX_DEPTH):
        run = Run(path)
        try:
            summaries.append(summary_of(Run.open(path)))
        except LeporelloError as error:
            damaged.append((run, error))
        except OSError as error:
            damaged.append((run, LeporelloError("it cannot be read.", says=error.strerror or error)))
    return summaries, damaged


def record(summary: RunSummary) -> dict[str, Any]:
    """A run as one JSON object."""
    best, last, corpus = summary.best or {}, summary.last, summary.corpus
    return without_infinities(
        {
            "run": str(summary.run.path),
            "text": summary.source,
            "digest": corpus.get("digest"),
            "cell": summary.config.cell,
            "hidden": summary.config.hidden,
            "layers": summary.config.layers,
            "parameters": summary.parameters,
            "epochs": last.get("epoch", 0),
            "updates": last.get("update", 0),
            "tokens": last.get("tokens", 0),
            "seconds": summary.seconds,
            "tokens_per_second": summary.tokens_per_second,
            "perplexity": best.get("perplexity"),
            "bits_per_character": best.get("bits_per_character"),
            "state": summary.state,
            "ended": summary.ended,
            "changed": summary.changed,
        }
    )


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders that hold a run, sorted by name; folders inside a run are not searched."""
    if any((folder / name).is_file() for name in RUN_FILES):
        yield folder
        return
    try:
        subfolders = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:  # no permission
        return
    for name in subfolders if depth else ():
        if not name.startswith("."):
            yield from _folders(folder / name, depth - 1)


def _row(one: RunSummary, folder: Path) -> list[str]:
    best, config, last = one.best or {}, one.config, one.last
    return [
        _name(one.run, folder),
        one.source,
        f"{config.layers} x {config.cell}" if config.layers > 1 else config.cell,
        str(config.hidden),
        f"{last.get('epoch', 0):.4g}",
        f"{last.get('update', 0):,}",
        format_long_time(one.seconds),
        format_optional(best.get("perplexity"), ",.3f"),
        format_optional(best.get("bits_per_character"), ".3f"),
        one.state,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(one.changed)),
    ]


def _name(run: Run, folder: Path) -> str:
    return str(run.path.relative_to(folder)) if run.path != folder else str(folder)


def _perplexity(one: RunSummary) -> float:
    return math.inf if one.best is None else one.best["perplexity"]
