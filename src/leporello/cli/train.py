"""`leporello train`: from a text to a language model, in one command.

Knows the options and how a run is shown; what is trained and how is told by the configuration.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.cli.options import with_options
from leporello.cli.running import run_to_the_end
from leporello.errors import ArgumentError
from leporello.language.config import Config, config_of, values_in
from leporello.language.training.start import start_training

RUNS = Path("runs")


@with_options
def train(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Files or folders; - for standard input; nothing: Python's manual."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the run; by itself one in runs/.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read options from a TOML file; those given here come first.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON instead of a progress bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing while it runs.")] = False,
    options: Any = None,
) -> None:
    """Train a recurrent language model on a text; show its perplexity as it falls, beside that of n-grams.

    Ctrl-C stops it after the present update, with a checkpoint from which leporello resume goes on (exit code 130); a
    second Ctrl-C breaks it off.
    """
    values = values_in(config) if config is not None else {}
    if text:
        values["text"] = text
    asked = config_of({**values, **options})
    found = asked.replaced({"text": tuple(map(_absolute, asked.text))})
    run_to_the_end(start_training(found, None, out or _free_folder(found)), as_json=as_json, quiet=quiet)


def _absolute(name: str) -> str:
    return name if name == "-" else str(Path(name).absolute())


def _free_folder(config: Config) -> Path:
    """runs/shakespeare-lstm, or with a number behind it where there is one."""
    stem = "manual" if not config.text else "stdin" if config.text == ("-",) else Path(config.text[0]).stem
    name = re.sub(r"[^\w.-]+", "-", f"{stem}-{config.cell}")
    for number in range(1, 10_000):
        folder = RUNS / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
    raise ArgumentError("there are too many runs of this name.", came=RUNS / name, tries="--out with another name")
