"""`leporello score`: a text coloured by how much each token surprised a run's network."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from leporello.atomic_write import write_atomically
from leporello.cli.console import say
from leporello.cli.output_files import writable
from leporello.cli.text_input import Encoding, read_text
from leporello.errors import ArgumentError
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.surprise_heatmap import coloured_html, coloured_text, is_plain, legend
from leporello.language.tokens.text_tokens import TextTokenizer

HTML_SUFFIXES = (".html", ".htm")


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Files or folders; - for standard input.")],
    first: Annotated[int, typer.Option(metavar="N", help="So many characters alone; 0: all.")] = 2000,
    encoding: Encoding = "auto",
    which: Annotated[str, typer.Option(metavar="WORD", help="The checkpoint: best or last.")] = "best",
    unknown: Annotated[
        str, typer.Option(metavar="WORD", help="symbol, or error: refuse unknown characters.")
    ] = "symbol",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write it as a page, FILE.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print tokens and bits as one JSON object instead.")] = False,
) -> None:
    """Show a text with each token on the colour of its surprise, in bits; marks below it where there are no colours."""
    if first < 0:
        raise ArgumentError("--first is no count.", came=first, expected="0 or more")
    page = None if html is None else writable(html, HTML_SUFFIXES, "--html page.html")
    model = LanguageModel.load(run, which)
    scored = read_text(text, encoding, model, unknown)[: first or None]
    result = model.evaluate(scored)
    symbols, bits = model.surprises(scored)
    pieces, costs = bits_per_piece(model, scored, bits)
    if page is not None:
        write_atomically(page, f'<!doctype html>\n<meta charset="utf-8">\n{coloured_html(pieces, costs)}'.encode())
    if as_json:
        print(json.dumps({"perplexity": result.perplexity, "tokens": symbols, "bits": [None, *bits[1:]]}))
        return
    console = Console()
    plain = is_plain(console)
    for part in (legend(plain=plain), coloured_text(pieces, costs, console.width, plain=plain)):
        if plain:
            say(part.plain)
        else:
            console.print(part)
    say(f"\nperplexity {result.perplexity:.3f}, {result.bits_per_character:.3f} bits per character")
    if html is not None:
        say(f"wrote {html}")


def bits_per_piece(model: LanguageModel, text: str, bits: list[float]) -> tuple[list[str], list[float]]:
    """Pieces of the text with their bits: a token each, but tokens that make up one character are joined.

    The first token is read and not predicted: its bits are NaN.
    """
    tokenizer = model.tokenizer
    costs = [math.nan, *bits[1:]]
    if isinstance(tokenizer, TextTokenizer):
        return list(tokenizer.split(text)), costs
    decoder = tokenizer.decoder()
    pieces, sums, sum_so_far = [], [], 0.0
    for token, cost in zip(tokenizer.encode(text).tolist(), costs, strict=True):
        sum_so_far += cost
        piece = decoder.push(token)
        if piece:
            pieces.append(piece)
            sums.append(sum_so_far)
            sum_so_far = 0.0
    return pieces, sums
