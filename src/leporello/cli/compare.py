"""`leporello compare`: several runs side by side: the options that differ, and what each reached."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.atomic_write import write_atomically
from leporello.cli.console import say, show, warn
from leporello.cli.output_files import plot_files
from leporello.cli.runs import record
from leporello.errors import ArgumentError
from leporello.language.config import Config
from leporello.language.report.curves import compare_png, compare_svg
from leporello.language.report.run_summary import RunSummary, summary_of
from leporello.language.run.folder import Run
from leporello.text_table import format_long_time, format_optional, plain_table

PLOT_WRITERS = {".svg": compare_svg, ".png": compare_png}


def compare(
    run: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Draw curves into FILE.png or .svg; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object instead.")] = False,
) -> None:
    """Show runs side by side: options that differ, perplexity, size and speed."""
    files = plot_files(plot)
    summaries = [summary_of(Run.open(path)) for path in run]
    names = _names(run)
    curves = {name: one.metrics for name, one in zip(names, summaries, strict=True)}
    for file, path in files.items():
        write_atomically(path, PLOT_WRITERS[file.suffix.lower()](curves))
    changed = differences([one.config for one in summaries])
    if as_json:
        print(json.dumps({"runs": [record(one) for one in summaries], "different": changed}))
    else:
        show(plain_table(_rows(names, summaries, changed)))
    if len({one.corpus.get("digest") for one in summaries}) > 1:
        warn("the runs have different texts or tokens: compare bits per character, and these with care")
    for file in files:
        (warn if as_json else say)(f"wrote {file}")


def differences(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Options whose values differ between configurations, each with the list of its values."""
    fields = [field.name for field in dataclasses.fields(Config)]
    values = {name: [getattr(config, name) for config in configs] for name in fields}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _rows(names: Sequence[str], summaries: Sequence[RunSummary], changed: dict[str, list[Any]]) -> list[list[str]]:
    numbers = [record(one) for one in summaries]
    return [
        ["", *names],
        ["perplexity", *(format_optional(one["perplexity"], ",.3f") for one in numbers)],
        ["bits per character", *(format_optional(one["bits_per_character"], ".3f") for one in numbers)],
        ["best after epochs", *(format_optional((one.best or {}).get("epoch"), ".4g") for one in summaries)],
        ["parameters", *(format_optional(one["parameters"], ",") for one in numbers)],
        ["updates", *(format_optional(one["updates"], ",") for one in numbers)],
        ["epochs", *(format_optional(one["epochs"], ".4g") for one in numbers)],
        ["tokens per second", *(format_optional(one["tokens_per_second"], ",.0f") for one in numbers)],
        ["time", *(format_long_time(one["seconds"]) for one in numbers)],
        ["state", *(one["state"] for one in numbers)],
        *([f"--{name.replace('_', '-')}", *map(_option_text, values)] for name, values in changed.items()),
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """A name for each run: its folder; its path where two folders have the same name; numbered where paths repeat.

    Fewer than two runs are refused.
    """
    if len(paths) < 2:
        raise ArgumentError("there is nothing to compare with.", came=paths[0], expected="two runs or more")
    short = Counter(path.absolute().name for path in paths)
    names = [path.absolute().name if short[path.absolute().name] == 1 else str(path) for path in paths]
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def _option_text(value: Any) -> str:
    """The value of an option in a table: names of files, yes or no, or the value itself."""
    if isinstance(value, tuple):
        return ", ".join(Path(one).name for one in value) or "the manual"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"
