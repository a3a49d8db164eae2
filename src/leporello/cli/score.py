"""How well a run's network predicts a text: `leporello evaluate` in numbers, `leporello score` in colours.

A text is read, normalised as in training, and checked against the vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from leporello.atomic_write import write_atomically
from leporello.cli.console import say
from leporello.cli.output_files import writable
from leporello.errors import ArgumentError
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.surprise_heatmap import coloured_html, coloured_text, is_plain, legend
from leporello.language.text.normalise import normalised
from leporello.language.text.sources import source_of
from leporello.language.tokens.text_tokens import TextTokenizer
from leporello.language.tokens.tokenizer import visible_token

HTML_SUFFIXES = (".html", ".htm")


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="Files or folders; -: standard input.")],
    first: Annotated[
        int, typer.Option(metavar="N", help="Score this many characters from the beginning alone; 0: all.")
    ] = 2000,
    encoding: Encoding = "auto",
    which: Annotated[str, typer.Option(metavar="WORD", help="Which checkpoint to read: best or last.")] = "best",
    unknown: Annotated[
        str, typer.Option(metavar="WORD", help="What becomes of unknown characters: the unknown symbol, or an error.")
    ] = "symbol",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write the coloured text as a page, FILE.html.")
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
        record = {"perplexity": result.perplexity, "unknown_tokens": result.unknown_tokens}
        print(json.dumps({**record, "tokens": symbols, "bits": [None, *bits[1:]]}))
        return
    console = Console()
    plain = is_plain(console)
    for part in (legend(plain=plain), coloured_text(pieces, costs, console.width, plain=plain)):
        if plain:
            say(part.plain)
        else:
            console.print(part)
    say(f"\nperplexity {result.perplexity:.3f}, {result.bits_per_character:.3f} bits per character")
    if result.unknown_tokens:
        say(f"{result.unknown_tokens:,} of {result.tokens + 1:,} tokens unknown: {list_unknown(model, scored)}")
    if html is not None:
        say(f"wrote {html}")


def bits_per_piece(model: LanguageModel, text: str, bits: list[float]) -> tuple[list[str], list[float]]:
    """Pieces of the text, and the bits of each: a token each, but tokens that make up one character are joined.

    The first token is read and not predicted: the bits of its piece are NaN.

    text   normalised
    bits   of each token of the text, as from `LanguageModel.surprises`
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


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="Files or folders; -: standard input.")],
    encoding: Encoding = "auto",
    which: Annotated[str, typer.Option(metavar="WORD", help="Which checkpoint to read: best or last.")] = "best",
    unknown: Annotated[
        str, typer.Option(metavar="WORD", help="What becomes of unknown characters: the unknown symbol, or an error.")
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


Encoding = Annotated[
    str,
    typer.Option(metavar="NAME", help="Encoding of the text: auto finds it; or utf-8, gb18030, big5, utf-16, latin-1."),
]

MAX_UNKNOWN_LISTED = 20  # unknown characters or words that an error names


def read_text(names: Sequence[str], encoding: str, model: LanguageModel, unknown: str) -> str:
    """The text of files or folders, joined, and normalised as the model's training text was.

    unknown   "symbol": unknown characters are read as the unknown symbol; "error": they raise
    """
    if unknown not in ("symbol", "error"):
        raise ArgumentError("--unknown has no such choice.", came=unknown, expected="symbol, error")
    pieces = source_of(names, encoding).pieces()
    text = "".join(normalised(pieces, model.config.normalise))
    listed = list_unknown(model, text) if unknown == "error" else ""
    if listed:
        raise ArgumentError(
            f"the text has {'words' if model.tokenizer.kind == 'word' else 'characters'} outside the vocabulary.",
            came=listed,
            tries="--unknown symbol, to read them as the unknown symbol",
        )
    return text


def list_unknown(model: LanguageModel, text: str) -> str:
    """The characters or words of a text that are outside the vocabulary, quoted, each once; "" if there are none.

    After `MAX_UNKNOWN_LISTED` of them, their number alone.
    """
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, TextTokenizer):
        return ""
    ids = tokenizer.encode(text).tolist()
    tokens = zip(tokenizer.split(text), ids, strict=True)
    unknown = dict.fromkeys(token for token, id in tokens if id == tokenizer.unknown)
    more = f" and {len(unknown) - MAX_UNKNOWN_LISTED:,} more" if len(unknown) > MAX_UNKNOWN_LISTED else ""
    return ", ".join(f"'{visible_token(token)}'" for token in list(unknown)[:MAX_UNKNOWN_LISTED]) + more
