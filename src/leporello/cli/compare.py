"""`leporello compare`: several runs side by side: what differs between them, and how good each became."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.cli.columns import aligned, duration, number
from leporello.cli.measuring import plot_files
from leporello.cli.runs import record
from leporello.cli.saying import say, show, warn
from leporello.cli.writing import write
from leporello.errors import ArgumentError
from leporello.language.config import Config
from leporello.language.report.curves import compare_png, compare_svg
from leporello.language.report.run_summary import RunSummary, summary_of
from leporello.language.run.folder import Run

WRITERS = {".svg": compare_svg, ".png": compare_png}


def compare(
    run: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Draw curves into FILE.png or .svg; may be given twice."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object instead.")] = False,
) -> None:
    """Show runs side by side: options that differ, perplexity, size and speed."""
    files = plot_files(plot)
    found = [summary_of(Run.open(path)) for path in run]
    names = _names(run)
    for file, path in files.items():
        write(path, WRITERS[file.suffix.lower()]({name: one.metrics for name, one in zip(names, found, strict=True)}))
    changed = differences([one.config for one in found])
    if as_json:
        print(json.dumps({"runs": [record(one) for one in found], "different": changed}))
    else:
        show(aligned(_rows(names, found, changed)))
    if len({one.corpus.get("digest") for one in found}) > 1:
        warn("the runs have different texts or tokens: compare bits per character, and these with care")
    for file in files:
        (warn if as_json else say)(f"wrote {file}")


def differences(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Keys that have not the same value everywhere, with the value of each."""
    fields = [field.name for field in dataclasses.fields(Config)]
    values = {name: [getattr(config, name) for config in configs] for name in fields}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _rows(names: Sequence[str], found: Sequence[RunSummary], changed: dict[str, list[Any]]) -> list[list[str]]:
    numbers = [record(one) for one in found]
    return [
        ["", *names],
        ["perplexity", *(number(one["perplexity"], ",.3f") for one in numbers)],
        ["bits per character", *(number(one["bits_per_character"], ".3f") for one in numbers)],
        ["best after epochs", *(number((one.best or {}).get("epoch"), ".4g") for one in found)],
        ["parameters", *(number(one["parameters"], ",") for one in numbers)],
        ["updates", *(number(one["updates"], ",") for one in numbers)],
        ["epochs", *(number(one["epochs"], ".4g") for one in numbers)],
        ["tokens per second", *(number(one["tokens_per_second"], ",.0f") for one in numbers)],
        ["time", *(duration(one["seconds"]) for one in numbers)],
        ["state", *(one["state"] for one in numbers)],
        *([f"--{name.replace('_', '-')}", *map(_told, values)] for name, values in changed.items()),
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of folders; their paths where two have the same name; a number where two are the same."""
    if len(paths) < 2:
        raise ArgumentError("there is nothing to compare with.", came=paths[0], expected="two runs or more")
    short = Counter(path.absolute().name for path in paths)
    names = [path.absolute().name if short[path.absolute().name] == 1 else str(path) for path in paths]
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(Path(one).name for one in value) or "the manual"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"
