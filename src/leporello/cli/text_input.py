"""Texts that a command passes to a trained network: read, normalised as in training, checked against its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from leporello.errors import ArgumentError
from leporello.language.model.language_model import LanguageModel
from leporello.language.text.normalise import normalised
from leporello.language.text.sources import source_of
from leporello.language.tokens.text_tokens import TextTokenizer
from leporello.language.tokens.tokenizer import visible_token

Encoding = Annotated[str, typer.Option(metavar="NAME", help="Of the text: auto, utf-8, gb18030, big5, utf-16, ...")]

MAX_UNKNOWN_LISTED = 20  # unknown characters or words that an error names


def read_text(names: Sequence[str], encoding: str, model: LanguageModel, unknown: str) -> str:
    """The text of files or folders, joined and normalised.

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
    """The characters or words of a text that are outside the vocabulary, quoted, each once; empty if there are none."""
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, TextTokenizer):
        return ""
    ids = tokenizer.encode(text).tolist()
    tokens = zip(tokenizer.split(text), ids, strict=True)
    unknown = dict.fromkeys(token for token, id in tokens if id == tokenizer.unknown)
    more = f" and {len(unknown) - MAX_UNKNOWN_LISTED:,} more" if len(unknown) > MAX_UNKNOWN_LISTED else ""
    return ", ".join(f"'{visible_token(token)}'" for token in list(unknown)[:MAX_UNKNOWN_LISTED]) + more
