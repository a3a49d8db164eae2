"""Texts that a command reads whole, as a run's network was taught to read them.

Knows sources and vocabularies; knows nothing of what is done with the text.
"""

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

MOST = 20  # unknown ones that are named


def text_in(names: Sequence[str], encoding: str, model: LanguageModel, unknown: str) -> str:
    """The text of files or folders; one with unknown characters is refused where that is asked."""
    if unknown not in ("symbol", "error"):
        raise ArgumentError("--unknown has no such choice.", came=unknown, expected="symbol, error")
    pieces = source_of(names, encoding).pieces()
    text = "".join(normalised(pieces, model.config.normalise))
    strange = unknown_in(model, text) if unknown == "error" else ""
    if strange:
        raise ArgumentError(
            f"the text has {'words' if model.tokenizer.kind == 'word' else 'characters'} outside the vocabulary.",
            came=strange,
            tries="--unknown symbol, to read them as the unknown symbol",
        )
    return text


def unknown_in(model: LanguageModel, text: str) -> str:
    """The first different characters or words of a text that are outside the vocabulary, quoted."""
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, TextTokenizer):
        return ""
    ids = tokenizer.encode(text).tolist()
    strange = dict.fromkeys(one for one, id in zip(tokenizer.split(text), ids, strict=True) if id == tokenizer.unknown)
    more = f" and {len(strange) - MOST:,} more" if len(strange) > MOST else ""
    return ", ".join(f"'{visible_token(one)}'" for one in list(strange)[:MOST]) + more
