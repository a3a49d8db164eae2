"""`fitted` and `tokenizer_from`: the kinds of tokenizers by name.

Knows the names; what each kind does is in a file of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from leporello.errors import ArgumentError, FileMismatch
from leporello.language.tokens.bpe import BPE
from leporello.language.tokens.byte import Byte
from leporello.language.tokens.char import Char
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.tokens.word import Word

RECORDS: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    Char.kind: Char.of_record,
    Byte.kind: Byte.of_record,
    Word.kind: Word.of_record,
    BPE.kind: BPE.of_record,
}
NAMES = ("char", "byte", "word", "bpe:N")
SIZES = range(257, 1_000_001)  # of bpe:N; 256 of them are the single bytes


def fitted(kind: str, pieces: Iterable[str], *, min_count: int = 1) -> Tokenizer:
    """A tokenizer for a text.

    kind        char, byte, word, or bpe:N for N tokens at most
    pieces      the text
    min_count   of char and word: what occurs less often is unknown

    >>> fitted("char", ["abra", "cadabra"], min_count=2).decode([1, 2, 3, 0])
    'abr\\ufffd'
    """
    kind, size = parsed(kind)
    if not isinstance(min_count, int) or min_count < 1:
        raise ArgumentError(
            "the argument 'min_count' is out of range.", came=min_count, expected="an integer from 1 on"
        )
    if kind == "char":
        return Char.fitted(pieces, min_count)
    if kind == "word":
        return Word.fitted(pieces, min_count)
    if min_count > 1:
        raise ArgumentError(f"nothing is unknown to {kind}.", came=f"min_count={min_count}", expected="min_count=1")
    return Byte.fitted(pieces) if size is None else BPE.fitted(pieces, size)


def parsed(kind: str) -> tuple[str, int | None]:
    """The kind of tokens and, for bpe, how many.

    >>> parsed("bpe:1000"), parsed("word")
    (('bpe', 1000), ('word', None))
    """
    name, colon, size = str(kind).partition(":")
    if name in ("char", "byte", "word") and not colon:
        return name, None
    if name == "bpe":
        return name, _size_in(kind, size)
    near = difflib.get_close_matches(name.lower(), ("char", "byte", "word", "bpe", "characters", "bytes"), n=1)
    raise ArgumentError(
        f"there are no tokens named '{kind}'.",
        nearest={"bpe": "bpe:N", "characters": "char", "bytes": "byte"}.get(near[0], near[0]) if near else None,
        expected=", ".join(NAMES),
    )


def _size_in(kind: str, size: str) -> int:
    if not (size.isascii() and size.isdigit() and len(size) < 10 and int(size) in SIZES):
        raise ArgumentError(
            "bpe needs the number of tokens.",
            came=kind,
            expected=f"bpe:N, N from {SIZES[0]} to {SIZES[-1]}",
            tries="bpe:1000",
        )
    return int(size)


def tokenizer_from(record: Any) -> Tokenizer:
    """The tokenizer that gave this record.

    >>> tokenizer_from({"kind": "char", "characters": "abc"}).size
    4
    """
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in RECORDS:
        raise FileMismatch(
            "this is no record of a tokenizer.",
            came=type(record).__name__ if kind is None else f"kind {kind!r}",
            expected=f"one of {', '.join(RECORDS)}",
        )
    return RECORDS[kind](record)
