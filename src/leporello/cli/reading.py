"""Texts that a command reads whole, as a run's network was taught to read them.

Knows sources and vocabularies; knows nothing of what is done with the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from leporello.errors import ArgumentError
from leporello.language.model import LanguageModel
from leporello.language.text.normalise import normalised
from leporello.language.text.sources import source_of

Encoding = Annotated[str, typer.Option(metavar="NAME", help="Of the text: auto, utf-8, gb18030, big5, utf-16, ...")]


def text_in(names: Sequence[str], encoding: str, model: LanguageModel, unknown: str) -> str:
    """The text of files or folders; one with unknown characters is refused where that is asked."""
    if unknown not in ("symbol", "error"):
        raise ArgumentError("--unknown has no such choice.", came=unknown, expected="symbol, error")
    pieces = source_of(names, encoding).pieces()
    text = "".join(normalised(pieces, model.config.normalise))
    if unknown == "error":
        tokens = model.tokenizer.encode(text)
        strange = sorted({one for one in text if int(model.tokenizer.encode(one)[0]) == model.tokenizer.unknown})
        if model.unknown_share(tokens):
            raise ArgumentError(
                "the text has characters outside the vocabulary.",
                came=" ".join(map(repr, strange[:20])) or "unknown words",
                tries="--unknown symbol",
            )
    return text
