"""`leporello generate`: text that a run's network writes, printed token by token."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from leporello.cli.console import encodable, warn
from leporello.cli.score import list_unknown
from leporello.language.model.language_model import LanguageModel


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What the text begins with.")] = "",
    length: Annotated[int, typer.Option(metavar="N", help="How many tokens to write.")] = 500,
    temperature: Annotated[
        float, typer.Option(metavar="X", help="Below 1: likelier tokens more often; 0: always the likeliest.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Choose among the K likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Choose among the likeliest tokens of probability P together.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="Seed of the random choice: the same seed writes the same text.")
    ] = None,
    which: Annotated[str, typer.Option(metavar="WORD", help="Which checkpoint to read: best or last.")] = "best",
) -> None:
    """Write text, token by token, and show it as it comes."""
    model = LanguageModel.load(run, which)
    pieces = model.generate_stream(prompt, length=length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    unknown = list_unknown(model, prompt)
    if unknown:
        warn(f"the network does not know {unknown}: it reads the unknown symbol instead")
    for piece in itertools.chain([prompt], pieces):
        sys.stdout.write(encodable(piece, sys.stdout.encoding))
        sys.stdout.flush()
    sys.stdout.write("\n")
