"""`leporello evaluate`: how well a run's network predicts a text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from leporello.cli.console import say
from leporello.cli.text_input import Encoding, read_text
from leporello.language.model.language_model import LanguageModel


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Files or folders; - for standard input.")],
    encoding: Encoding = "auto",
    which: Annotated[str, typer.Option(metavar="WORD", help="The checkpoint: best or last.")] = "best",
    unknown: Annotated[
        str, typer.Option(metavar="WORD", help="symbol, or error: refuse unknown characters.")
    ] = "symbol",
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object.")] = False,
) -> None:
    """Perplexity and bits per character of a text, the state carried from its first character to its last."""
    model = LanguageModel.load(run, which)
    scores = model.evaluate(read_text(text, encoding, model, unknown))
    if as_json:
        say(json.dumps(dataclasses.asdict(scores)))
        return
    say(
        f"perplexity          {scores.perplexity:.4f}\n"
        f"bits per character  {scores.bits_per_character:.4f}\n"
        f"bits per byte       {scores.bits_per_byte:.4f}\n"
        f"tokens              {scores.tokens:,}\n"
        f"unknown             {scores.unknown:.3%}"
    )
