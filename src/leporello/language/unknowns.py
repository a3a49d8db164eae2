"""Refuse a text with something that is not in the vocabulary: what it is, how often it occurs, and where first.

Knows texts and tokenizers; knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from leporello.errors import ArgumentError
from leporello.language.tokens.borders import at_borders
from leporello.language.tokens.tokenizer import InTexts, Tokenizer, shown

UNKNOWNS = ("symbol", "error")


def refuse_unknown(pieces: Callable[[], Iterator[str]], border: int, tokenizer: Tokenizer) -> None:
    """border   the character where validation begins"""
    if not isinstance(tokenizer, InTexts):
        return
    token, place, line = _first_unknown(pieces(), tokenizer)
    if token:
        what = "word" if any(map(str.isalnum, token)) and tokenizer.kind == "word" else "character"
        count = sum(tokenizer.split(piece).count(token) for piece in _as_it_splits(pieces(), tokenizer))
        code = f" (U+{ord(token):04X})" if what == "character" else ""
        raise ArgumentError(
            f"the {what} '{shown(token)}'{code} is not in the vocabulary of the training part.",
            came=f"{count} time{'s'[: count != 1]}, first as character {place + 1} of the text, in line {line}",
            part="validation" if place >= border else "training",
            tries="unknown='symbol', a smaller min_count, or byte or bpe:N, to which nothing is unknown",
        )


def _first_unknown(pieces: Iterator[str], tokenizer: InTexts) -> tuple[str, int, int]:
    """The text of the first unknown token, its place and line; no text without one."""
    place, line = 0, 1
    for piece in _as_it_splits(pieces, tokenizer):
        unknown = (tokenizer.encode(piece) == tokenizer.unknown).nonzero()
        if unknown.numel():
            index = int(unknown[0])
            tokens = tokenizer.split(piece)
            before = "".join(tokens[:index])
            return tokens[index], place + len(before), line + before.count("\n")
        place += len(piece)
        line += piece.count("\n")
    return "", place, line


def _as_it_splits(pieces: Iterator[str], tokenizer: InTexts) -> Iterator[str]:
    return pieces if tokenizer.kind == "char" else at_borders(pieces)
